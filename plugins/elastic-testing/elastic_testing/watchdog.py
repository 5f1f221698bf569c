"""The contract for watchdogs, written as tests. docs/extend/watchdogs.md has an example."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import unittest
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from elastic_core.plugin import CLIENT_VARIABLE, Instant, SystemClock, WatchedWorker, later
from elastic_testing.waiting import LONG, eventually, open_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_core.plugin import Expiry, Watchdog

_CLOCK = SystemClock()
_PRELUDE = """
import os, sys, time
from elastic_core.watchdog import expires
def say(word): os.write(1, (word + '\\n').encode())
def wait(): sys.stdin.readline()
held_up = []
def leave(after, scope):
    begun = time.monotonic()
    with expires(after, scope): pass
    if time.monotonic() - begun > after / 2: held_up.append(scope)
def say_held_up(): say(','.join(held_up))
"""


def _last(after: float) -> str:
    """Return a script's last block, which sets a timer. Its expiry is reported after all earlier ones."""
    return f"\nwith expires({after}, 'last'): wait()\n"


def _wrong(reported: list[str], held_up: str) -> list[str]:
    """Return the scopes that were wrongly reported. A report is correct if a stall of the machine delayed the worker in
    the block. The worker prints the scopes of such blocks (see `leave` and `say_held_up`)."""
    return [scope for scope in reported if scope not in held_up.split(",")]


class ExpiryLog:
    """The callback that a watchdog calls when a worker hangs. Records each expiry and its time."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._expiries: list[Expiry] = []
        self.at: list[Instant] = []

    def __call__(self, expiry: Expiry) -> None:
        with self._news:
            self._expiries.append(expiry)
            self.at.append(_CLOCK.now())
            self._news.notify_all()

    def expiries(self) -> list[Expiry]:
        """Return all expiries so far."""
        with self._news:
            return list(self._expiries)

    def pids(self, count: int, within: float) -> list[int]:
        """Wait up to `within` seconds for `count` expiries, and return their workers' process IDs in order."""
        with self._news:
            reported = self._news.wait_for(lambda: len(self._expiries) >= count, within)
            assert reported, f"expected reports of {count} hung workers within {within} s, found {self._expiries}"
            return [expiry.worker_pid for expiry in self._expiries]

    def scopes(self, last: str = "last") -> list[str]:
        """Wait for an expiry with the scope `last`, and return all other scopes in order."""
        with self._news:
            reported = self._news.wait_for(lambda: last in self._all(), LONG)
            assert reported, f"the timer {last!r} was not reported, only {self._all()}"
            return [scope for scope in self._all() if scope != last]

    def _all(self) -> list[str]:
        return [expiry.scope for expiry in self._expiries]


def _started(watchdog: Watchdog) -> ExpiryLog:
    log = ExpiryLog()
    watchdog.start(log)
    return log


def _with_timers(watchdog: Watchdog) -> ExpiryLog:
    log = _started(watchdog)
    if CLIENT_VARIABLE not in watchdog.worker_environment():
        raise unittest.SkipTest(f"the watchdog has no timers: it does not set {CLIENT_VARIABLE} for its workers")
    return log


class _Worker(subprocess.Popen[str]):
    """A process that runs a script with the functions `expires`, `say`, `wait`, `leave` and `say_held_up`."""

    def read_line(self) -> str:
        """Return the next line that the worker prints, or an empty string once it has exited."""
        assert self.stdout is not None
        return self.stdout.readline().strip()

    def resume(self) -> None:
        """Make the worker return from `wait`."""
        assert self.stdin is not None
        self.stdin.write("\n")
        self.stdin.flush()

    def end(self) -> str:
        output, _ = self.communicate("\n" * 10, timeout=LONG)
        assert self.returncode == 0
        return output


class WatchdogContract:
    """See `interfaces.workers.Watchdog`. To use it with pytest, inherit from this class and define a fixture
    `watchdog`. The fixture yields a watchdog for the job `run_id` that has not been started, and stops it at the end.

    Timer tests are skipped if `worker_environment` names no client for `elastic_core.watchdog.expires`. Tests of hangs
    without timers are skipped if the test class does not define `hangs`.

    Attributes:
        stops_in: time limit in seconds for `stop` and `round_started` to return (5).
        hangs: Python code for a worker that works at first, and then hangs in a way that this watchdog detects. The
            worker's stdout is its log file.
        works: Python code for a worker that never hangs.
        report_within: time limit in seconds for reporting a hung worker (30).
        run_id: the job ID in the workers' requests ("contract").
        punctual: maximum number of seconds from a timer's deadline to the report of its expiry (1).
    """

    stops_in: ClassVar[float] = 5.0
    hangs: ClassVar[str] = ""
    works: ClassVar[str] = "while True: print('step', flush=True); time.sleep(0.02)"
    report_within: ClassVar[float] = 30.0
    run_id: ClassVar[str] = "contract"
    punctual: ClassVar[float] = 1.0

    def test_scratch_is_private_and_removed_by_stop(self, watchdog: Watchdog) -> None:
        watchdog.start(ExpiryLog())
        folders = [Path(name) for name in watchdog.scratch()]
        assert [folder for folder in folders if not (folder.is_absolute() and folder.is_dir())] == []
        assert [folder for folder in folders if folder.is_symlink() or folder.stat().st_uid != os.geteuid()] == []
        watchdog.stop()
        assert [folder for folder in folders if folder.exists()] == []

    def test_stop_is_prompt_and_idempotent(self, watchdog: Watchdog) -> None:
        threads, files = set(threading.enumerate()), open_files()
        watchdog.start(ExpiryLog())
        watchdog.round_started([WatchedWorker(0, 0, os.getpid())])
        begun = _CLOCK.now()
        watchdog.stop()
        assert _CLOCK.now() - begun < self.stops_in
        watchdog.stop()
        assert (set(threading.enumerate()) - threads, open_files() - files) == (set(), set())

    def test_stop_needs_no_start(self, watchdog: Watchdog) -> None:
        watchdog.stop()
        watchdog.stop()

    def test_healthy_watchdog_has_no_fault(self, watchdog: Watchdog) -> None:
        assert watchdog.fault() == ""
        watchdog.start(ExpiryLog())
        assert watchdog.fault() == ""
        watchdog.stop()
        assert watchdog.fault() == ""

    def test_worker_environment_is_constant_text(self, watchdog: Watchdog) -> None:
        watchdog.start(ExpiryLog())
        first = dict(watchdog.worker_environment())
        assert all(isinstance(text, str) and text for pair in first.items() for text in pair)
        assert dict(watchdog.worker_environment()) == first

    # -- each round's workers, without timers

    @contextmanager
    def round(self, watchdog: Watchdog, folder: Path, *scripts: str) -> Iterator[list[WatchedWorker]]:
        """Start the workers of a round, and pass them to the watchdog once all of them have written output. The workers
        are killed at the end."""
        if not self.hangs:
            raise unittest.SkipTest("the test class does not define `hangs`")
        with ExitStack() as stack:
            environment = {**os.environ, **watchdog.worker_environment()}
            workers = []
            for rank, code in enumerate(scripts):
                command, log = [sys.executable, "-c", f"import os, sys, time\n{code}"], folder / f"rank-{rank}.out"
                with log.open("wb") as output:
                    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, env=environment)
                stack.enter_context(process)
                stack.callback(process.kill)
                workers.append(WatchedWorker(rank, rank, process.pid, (log,)))
            written = "the condition that every worker has written output, including the one that hangs (`hangs`),"
            eventually(lambda: all(worker.logs[0].stat().st_size for worker in workers), LONG, written)
            watchdog.round_started(workers)
            yield workers

    def test_round_started_returns_quickly(self, watchdog: Watchdog, tmp_path: Path) -> None:
        """`round_started` must return quickly, even without logs, without workers, or for workers that have exited."""
        _started(watchdog)
        with subprocess.Popen([sys.executable, "-c", ""]) as ended:
            pass
        for workers in ([WatchedWorker(0, 4, os.getpid())], [WatchedWorker(0, 0, ended.pid, (tmp_path / "gone",))], []):
            begun = _CLOCK.now()
            watchdog.round_started(workers)
            assert _CLOCK.now() - begun < self.stops_in, "round_started blocks the agent"
        assert watchdog.fault() == ""

    def test_hung_worker_is_reported_once_per_round(self, watchdog: Watchdog, tmp_path: Path) -> None:
        log, begun = _started(watchdog), _CLOCK.now()
        with self.round(watchdog, tmp_path, self.works, self.hangs) as (_, first):
            assert log.pids(1, self.report_within) == [first.pid]
            (expiry,) = log.expiries()
            assert expiry.reason, "without a reason, the hang would be reported as an expired timer"
            assert expiry.late >= 0
            assert not threading.Event().wait(_CLOCK.now() - begun)
            assert log.pids(1, self.report_within) == [first.pid]
            (tmp_path / "2").mkdir()
            with self.round(watchdog, tmp_path / "2", self.hangs) as (second,):
                assert log.pids(2, self.report_within) == [first.pid, second.pid]

    # -- timers

    @contextmanager
    def worker(self, watchdog: Watchdog, script: str) -> Iterator[_Worker]:
        """Start a worker of this watchdog, and kill it at the end."""
        environment = {**os.environ, "TORCHELASTIC_RUN_ID": self.run_id, **watchdog.worker_environment()}
        command = [sys.executable, "-c", _PRELUDE + script]
        pipe = subprocess.PIPE
        with _Worker(command, stdin=pipe, stdout=pipe, env=environment, text=True) as worker:
            try:
                yield worker
            finally:
                worker.kill()

    def test_expired_timer_is_reported_in_time(self, watchdog: Watchdog) -> None:
        log = _with_timers(watchdog)
        with self.worker(watchdog, "say('up'); wait()\nwith expires(0.3, 'step'): say('in'); wait()") as worker:
            worker.read_line()
            begun = _CLOCK.now()
            worker.resume()
            worker.read_line()
            entered = _CLOCK.now()
            assert log.scopes("step") == []
            (expiry,) = log.expiries()
            assert (expiry.worker_pid, expiry.reason) == (worker.pid, "")
            assert 0 <= expiry.late < self.punctual
            assert later(begun, 0.3) <= log.at[0] < later(entered, 0.3 + self.punctual)

    def test_timer_left_in_time_is_not_reported(self, watchdog: Watchdog) -> None:
        log = _with_timers(watchdog)
        script = "for step in range(100): leave(0.3, f'step {step % 3}')\nsay_held_up()" + _last(0.4)
        with self.worker(watchdog, script) as worker:
            assert _wrong(log.scopes(), worker.read_line()) == []

    def test_expiry_is_reported_once(self, watchdog: Watchdog) -> None:
        log = _with_timers(watchdog)
        script = "with expires(0.05, 'first'): wait()\nwith expires(0.05, 'second'): wait()" + _last(0.05)
        with self.worker(watchdog, script) as worker:
            assert log.scopes("first") == []
            worker.resume()
            assert log.scopes("second") == ["first"]
            worker.resume()
            assert log.scopes() == ["first", "second"]

    def test_reacquired_timer_starts_again(self, watchdog: Watchdog) -> None:
        log = _with_timers(watchdog)
        again = "with expires(60, 'step'):" + _last(0.3).replace("\n", "\n  ")
        with self.worker(watchdog, f"leave(0.2, 'step')\nsay_held_up()\n{again}") as worker:
            assert _wrong(log.scopes(), worker.read_line()) == []

    def test_leaving_inner_block_keeps_outer_timer(self, watchdog: Watchdog) -> None:
        log = _with_timers(watchdog)
        script = """
with expires(0.1, 'outer'):
    with expires(60, 'inner'): pass
    wait()
"""
        with self.worker(watchdog, script):
            assert log.scopes("outer") == []

    def test_one_of_several_workers_hangs(self, watchdog: Watchdog) -> None:
        log = _with_timers(watchdog)
        well = "with expires(60, 'step'): say('in'); wait()"
        with self.worker(watchdog, well) as one, self.worker(watchdog, well) as two:
            assert one.read_line() == two.read_line() == "in"
            with self.worker(watchdog, _last(0.1)) as three:
                assert log.scopes() == []
                assert [expiry.worker_pid for expiry in log.expiries()] == [three.pid]
            one.end()
            two.end()

    def test_forked_process_has_separate_timers(self, watchdog: Watchdog) -> None:
        log = _with_timers(watchdog)
        script = """
with expires(60, 'step'):
    child = os.fork()
    if child == 0:
        with expires(0.1, 'step'): wait()
        os._exit(0)
    say(str(child))
    os.wait()
"""
        with self.worker(watchdog, script) as worker:
            child = int(worker.read_line())
            log.scopes("step")
            assert [expiry.worker_pid for expiry in log.expiries()] == [child]
            worker.end()

    def test_ended_worker_is_not_reported(self, watchdog: Watchdog) -> None:
        log = _with_timers(watchdog)
        with self.worker(watchdog, "with expires(1.0, 'step'): os._exit(0)") as worker:
            worker.end()
            with self.worker(watchdog, _last(1.1)):
                assert log.scopes() == []

    def test_many_requests_are_all_received(self, watchdog: Watchdog) -> None:
        log = _with_timers(watchdog)
        script = "for step in range(1000): leave(1.0 + step / 1e4, f'{step}')\nsay_held_up()\n"
        with self.worker(watchdog, script) as one, self.worker(watchdog, f"{script}wait(){_last(1.2)}") as two:
            held_up = f"{one.end().strip()},{two.read_line()}"
            two.resume()
            assert _wrong(log.scopes(), held_up) == []

    def test_worker_continues_after_watchdog_stops(self, watchdog: Watchdog) -> None:
        """After the watchdog has stopped, a worker can leave its block, and its next block soon raises an error."""
        log = _with_timers(watchdog)
        script = """
with expires(60, 'first'): say('in'); wait()
say('out')
try:
    with expires(60, 'second'): say('in')
except OSError: say('refused')
"""
        with self.worker(watchdog, script) as worker:
            assert worker.read_line() == "in"
            watchdog.stop()
            worker.resume()
            assert worker.read_line() == "out"
            assert worker.read_line() == "refused"
            worker.end()
        assert log.expiries() == []

    def test_no_expiry_is_reported_after_stop(self, watchdog: Watchdog) -> None:
        log = _with_timers(watchdog)
        with self.worker(watchdog, "say('up'); wait()\nwith expires(0.4, 'step'): say('in'); wait()") as worker:
            worker.read_line()
            begun = _CLOCK.now()
            worker.resume()
            worker.read_line()
            watchdog.stop()
            in_time, before = _CLOCK.now() - begun < 0.2, log.expiries()
            assert before == [] or not in_time  # on a stalled machine, the timer may expire before the stop
            assert not threading.Event().wait(0.5)
        assert log.expiries() == before
