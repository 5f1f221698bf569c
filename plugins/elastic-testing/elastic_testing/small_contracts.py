"""The contracts for worker starters, rank policies, event handlers, health checks, notice sources and commands, written
as tests.

The test class for a notice source, for example:

class TestMyNotices(NoticeContract):
    @pytest.fixture
    def source(self, server):
        return lambda pause: my_source(Context(options={"url": server.url}), pause)

    @pytest.fixture
    def announce(self, server):
        return server.announce

    @pytest.fixture
    def withdraw(self, server):
        return server.withdraw
"""

from __future__ import annotations

import os
import random
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import (
    Candidate,
    CheckLevel,
    CheckResult,
    ConfigurationError,
    Event,
    EventSource,
    Launch,
    Node,
    Notice,
    SystemClock,
    later,
)
from elastic_testing.waiting import LONG, Background, eventually, open_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.plugin import Child, EventHandler, EventMetadataValue, Notices, Pause, RankPolicy, Starter

    StarterFor = Callable[[tuple[str, ...]], Starter]

_AGENT_VARIABLE = "contract_of_the_agent"
_REPORTS = """
import os, signal, sys
print(os.getsid(0) == os.getpid(), sorted(name for name in os.environ if name.startswith("contract")), os.getcwd())
print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, os.fstat(int(os.environ["contract_mark"])).st_ino)
print("to stderr", file=sys.stderr)
sys.exit(7)
"""
_WAITS = "import os, signal; print('ready', flush=True); signal.pause()"


class StarterContract:
    """See `interfaces.workers.Starter`. To use it with pytest, inherit from this class and define a fixture
    `starter_for` that returns a function. Given a command line for the current Python interpreter, the function creates
    a starter."""

    def test_worker_gets_session_environment_and_streams(self, starter_for: StarterFor, tmp_path: Path) -> None:
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        os.environ[_AGENT_VARIABLE] = "not for the worker"
        try:
            child = self._start(starter_for(self._python(_REPORTS)), tmp_path, out_end, err_end)
        finally:
            del os.environ[_AGENT_VARIABLE]
            os.close(out_end)
            os.close(err_end)
        mark = (tmp_path / "mark").stat().st_ino
        with open(out) as output, open(err) as errors:
            assert self._ended(child) == 7
            assert output.read() == f"True {['contract', 'contract_mark']} {Path.cwd()}\nTrue {mark}\n"
            assert errors.read() == "to stderr\n"

    def test_killed_worker_reports_signal(self, starter_for: StarterFor, tmp_path: Path) -> None:
        reader, writer = os.pipe()
        child = self._start(starter_for(self._python(_WAITS)), tmp_path, writer)
        os.close(writer)
        with open(reader) as output:
            assert output.readline() == "ready\n"
            assert child.poll() is None
            os.kill(child.pid, signal.SIGTERM)
            assert self._ended(child) == -signal.SIGTERM
            assert child.poll() == -signal.SIGTERM
            assert output.read() == ""  # no process holds the stream open

    def test_starter_starts_several_workers(self, starter_for: StarterFor, tmp_path: Path) -> None:
        starter = starter_for(self._python("import os, sys; sys.exit(int(os.environ['contract']))"))
        children = [self._start(starter, tmp_path, number=number) for number in range(3)]
        assert len({child.pid for child in children}) == 3
        assert [self._ended(child) for child in children] == [0, 1, 2]

    def test_own_sentinel_becomes_readable_at_exit(self, starter_for: StarterFor, tmp_path: Path) -> None:
        child = self._start(starter_for(self._python("import signal; signal.pause()")), tmp_path)
        sentinel = child.own_sentinel()
        os.kill(child.pid, signal.SIGKILL)
        if sentinel is not None:
            try:
                assert select.select([sentinel], [], [], LONG)[0]
            finally:
                os.close(sentinel)
        assert self._ended(child) == -signal.SIGKILL

    def test_result_is_available_for_commands(self, starter_for: StarterFor, tmp_path: Path) -> None:
        starter = starter_for(self._python(""))
        assert self._ended(self._start(starter, tmp_path)) == 0
        starter.result(Launch(0, {}, None, None, tmp_path / "result", -1))

    def test_ended_worker_leaves_no_zombie(self, starter_for: StarterFor, tmp_path: Path) -> None:
        child = self._start(starter_for(self._python("")), tmp_path)
        assert self._ended(child) == 0
        try:
            os.kill(child.pid, 0)
        except ProcessLookupError:
            return
        raise AssertionError(f"the starter did not reap the exited process {child.pid}, which is now a zombie")

    def test_worker_leaves_no_descriptor(self, starter_for: StarterFor, tmp_path: Path) -> None:
        starter = starter_for(self._python(""))
        self._ended(self._start(starter, tmp_path))
        before = open_files()
        self._ended(self._start(starter, tmp_path))
        assert open_files() - before == set()

    def test_missing_program_is_reported(self, starter_for: StarterFor, tmp_path: Path) -> None:
        try:
            child = self._start(starter_for(("/no/such/program",)), tmp_path)
        except ConfigurationError as error:
            assert "/no/such/program" in str(error)
        else:
            assert self._ended(child) not in (0, None)  # the error was written to stderr

    def _python(self, code: str) -> tuple[str, ...]:
        return (sys.executable, "-c", code)

    def _start(
        self, starter: Starter, folder: Path, out: int | None = None, err: int | None = None, number: int = 0
    ) -> Child:
        with (folder / "mark").open("w") as mark:
            kept = {name: value for name, value in os.environ.items() if not name.startswith("contract")}
            given = {**kept, "contract": str(number), "contract_mark": str(mark.fileno())}
            if (prepare := getattr(starter, "prepare", None)) is not None:
                prepare(given, frozenset())
            return starter.start(Launch(number, given, out, err, folder / "result", mark.fileno()))

    def _ended(self, child: Child) -> int | None:
        eventually(lambda: child.poll() is not None, timeout=LONG)
        return child.poll()


def _candidates(hosts: Sequence[str], ranked: int = 0) -> list[Candidate]:
    """Return candidates in their default order. The first `ranked` candidates were in the last round."""
    return [
        Candidate(Node(f"{host}:{number}", host, local_world_size=1 + number % 3), number if number < ranked else None)
        for number, host in enumerate(hosts)
    ]


class RankPolicyContract:
    """See `interfaces.node.RankPolicy`. To use it with pytest, inherit from this class and define a fixture
    `policy`."""

    def test_policy_returns_the_given_nodes(self, policy: RankPolicy) -> None:
        for number in (1, 2, 3, 17, 64):
            for ranked in {0, 1, number // 2, number}:
                given = _candidates([f"node{7 * place % number}" for place in range(number)], ranked)
                found = policy(list(given))
                assert sorted(map(id, found)) == sorted(map(id, given))

    def test_policy_is_pure(self, policy: RankPolicy) -> None:
        given = _candidates(["b", "a", "c"], 1)
        kept = list(given)
        first = list(policy(given))
        policy(_candidates(["z", "y"]))
        assert given == kept
        assert list(policy(given)) == first

    def test_unchanged_nodes_keep_their_ranks(self, policy: RankPolicy) -> None:
        """If a restart changed the ranks, the data that workers have cached locally would be useless."""
        for number in (2, 3, 12, 100):
            hosts = [f"node{place}" for place in range(number)]
            random.Random(7).shuffle(hosts)
            formed = list(policy(_candidates(hosts)))
            again = [replace(candidate, last_rank=rank) for rank, candidate in enumerate(formed)]
            assert [it.node.name for it in policy(again)] == [it.node.name for it in formed]

    def test_policy_accepts_any_node_name(self, policy: RankPolicy) -> None:
        assert len(policy(_candidates(["", "ä", "node", "9" * 40, "a" * 200, "a b"]))) == 6

    def test_thousand_nodes_are_ranked_quickly(self, policy: RankPolicy) -> None:
        given = _candidates([f"node{number % 997}" for number in range(1_000)], 500)
        Background(lambda: policy(given)).result(5.0)


class EventHandlerContract:
    """See `elastic_core.events`. To use it with pytest, inherit from this class and define a fixture `handler` and a
    method `recorded`. If the handler has a `close` method, each test calls it at the end."""

    def recorded(self, handler: EventHandler) -> list[Any]:
        """Return the events recorded so far, in order."""
        raise NotImplementedError

    def test_events_are_recorded_in_order(self, handler: EventHandler) -> None:
        for number in range(100):
            handler(Event(f"event {number}", EventSource.AGENT, 7_000_000 + number, {"number": 8_000_000 + number}))
        recorded = [str(item) for item in self.recorded(handler)]
        assert len(recorded) == 100
        for number, text in enumerate(recorded):
            assert f"event {number}" in text
            assert str(7_000_000 + number) in text, "the timestamp is missing"
            assert str(8_000_000 + number) in text, "the metadata is missing"
            assert "agent" in text.lower()
        self._close(handler)

    def test_all_values_are_recorded(self, handler: EventHandler) -> None:
        values: dict[str, EventMetadataValue] = {
            "text": 'a "b"\n\u2028 ä',
            "whole": 2**70,
            "part": 0.5,
            "yes": True,
            "nothing": None,
            "": "",
        }
        handler(Event("values", EventSource.WORKER, 1, values))
        handler(Event("no values", EventSource.AGENT))
        assert len(self.recorded(handler)) == 2
        handler(Event("long", EventSource.AGENT, 1, {"reason": "x" * 100_000}))
        assert len(self.recorded(handler)) == 3
        self._close(handler)

    def test_handler_can_be_closed_twice(self, handler: EventHandler) -> None:
        self._close(handler)
        self._close(handler)

    def _close(self, handler: EventHandler) -> None:
        if (close := getattr(handler, "close", None)) is not None:
            close()


class HealthCheckContract:
    """See `HealthCheckRecord`. To use it with pytest, inherit from this class and define a fixture `check` that returns
    a function. The function runs the check."""

    def test_check_is_repeatable_and_gives_message_and_remedy(
        self, check: Callable[[], CheckResult | Iterable[CheckResult]]
    ) -> None:
        results = self._results(check())
        for found in results:
            assert isinstance(found, CheckResult)
            assert isinstance(found.level, CheckLevel)
            assert found.message.strip() == found.message.rstrip(".") != ""
            assert bool(found.remedy) or found.level in (CheckLevel.OK, CheckLevel.SKIPPED)
        assert [found.level for found in self._results(check())] == [found.level for found in results]

    def _results(self, found: CheckResult | Iterable[CheckResult]) -> list[CheckResult]:
        return list(found) if isinstance(found, Iterable) else [found]


class NoticeContract:
    """See `NoticeRecord`. To use it with pytest, inherit from this class and define three fixtures, each of which
    returns a function. `source` starts the source with the `pause` that is passed to it. `announce` makes the source
    find that this node must leave, and `withdraw` undoes this. In these tests, `pause` does not wait."""

    def test_notice_is_announced_and_withdrawn(
        self, source: Callable[[Pause], Notices], announce: Callable[[], object], withdraw: Callable[[], object]
    ) -> None:
        until = later(SystemClock().now(), LONG)
        found = source(lambda seconds: SystemClock().now() < until)
        announce()
        notice = next(found)
        assert isinstance(notice, Notice)
        assert notice.reason.strip() == notice.reason.rstrip(".") != ""
        assert notice.at is None or isinstance(notice.at, (int, float))
        withdraw()
        assert next(found) is None

    def test_source_ends_with_the_agent(self, source: Callable[[Pause], Notices]) -> None:
        assert list(source(lambda seconds: False)) == []


class CommandContract:
    """See `CommandRecord`. To use it with pytest, inherit from this class and define a fixture `words`, the arguments
    of a call that succeeds, such as `["forget", "job7"]`. Each test runs `elastic` in a subprocess, so the plugin must
    be installed."""

    def test_help_describes_command(self, words: Sequence[str]) -> None:
        assert re.search(rf"^  {re.escape(words[0])} +\S", self._run(0, "--help").stdout, re.MULTILINE)
        assert self._run(0, words[0], "--help").stdout.strip()

    def test_help_does_not_import_torch(self, words: Sequence[str]) -> None:
        imported = self._run(0, words[0], "--help", python=("-X", "importtime")).stderr
        assert re.search(r"\| +torch$", imported, re.MULTILINE) is None

    def test_unknown_flag_is_an_error(self, words: Sequence[str]) -> None:
        assert "--no-such-flag" in self._run(2, words[0], "--no-such-flag").stderr

    def test_command_succeeds(self, words: Sequence[str]) -> None:
        self._run(0, *words)

    def _run(self, code: int, *words: str, python: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *python, "-m", "elastic_core", *words]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done
