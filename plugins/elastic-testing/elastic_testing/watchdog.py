"""The contract of watchdogs, as tests. A watchdog's tests need ten lines:

class TestMyWatchdog(WatchdogContract):
    @pytest.fixture
    def watchdog(self):
        watchdog = MyWatchdog(run_id=self.run_id)
        yield watchdog
        watchdog.stop()
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import unittest
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from elastic_core.clock import Instant, SystemClock, later
from elastic_core.interfaces.watchdog import WatchedWorker
from elastic_core.watchdog.guard import CLIENT_VARIABLE
from elastic_testing.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from elastic_core.interfaces.watchdog import Expiry, Watchdog

_LONG = 30.0
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
    """The end of a script: a last timer. When it expires, all earlier expiries have been reported."""
    return f"\nwith expires({after}, 'last'): wait()\n"


def _wrong(told: list[str], held_up: str) -> list[str]:
    """Scopes that were reported although the worker left their blocks immediately. On a stalled machine, a worker may
    be delayed in a block, and prints its scope (`leave`, `say_held_up`); those scopes may be reported."""
    return [scope for scope in told if scope not in held_up.split(",")]


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
        """All expiries so far."""
        with self._news:
            return list(self._expiries)

    def pids(self, count: int, within: float) -> list[int]:
        """Wait for `count` expiries, and return their workers in order."""
        with self._news:
            told = self._news.wait_for(lambda: len(self._expiries) >= count, within)
            assert told, f"expected reports of {count} hung workers within {within} s, found {self._expiries}"
            return [expiry.worker_pid for expiry in self._expiries]

    def scopes(self, last: str = "last") -> list[str]:
        """Wait for an expiry with the scope `last`, and return all other scopes in order."""
        with self._news:
            told = self._news.wait_for(lambda: last in self._all(), _LONG)
            assert told, f"the timer {last!r} was not reported, only {self._all()}"
            return [scope for scope in self._all() if scope != last]

    def _all(self) -> list[str]:
        return [expiry.scope for expiry in self._expiries]


def _started(watchdog: Watchdog) -> ExpiryLog:
    told = ExpiryLog()
    watchdog.start(told)
    return told


def _with_timers(watchdog: Watchdog) -> ExpiryLog:
    told = _started(watchdog)
    if CLIENT_VARIABLE not in watchdog.worker_environment():
        raise unittest.SkipTest(f"a watchdog without timers: it does not set {CLIENT_VARIABLE} for its workers")
    return told


class _Worker:
    """A process that runs a script with the functions `expires`, `say`, `wait`, `leave` and `say_held_up`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def hear(self) -> str:
        """The next word that it prints; empty once it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        """Let the worker return from `wait`."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Wait until it has ended with exit code 0, and return its remaining output."""
        said, _ = self.process.communicate("\n" * 10, timeout=_LONG)
        assert self.process.returncode == 0
        return said


class LifeCycle:
    """The contract of every watchdog.

    Attributes:
        stops_in: seconds within which `stop` must return.
    """

    stops_in: ClassVar[float] = 5.0

    def test_its_scratch_is_its_own_and_gone_when_it_is_stopped(self, watchdog: Watchdog) -> None:
        watchdog.start(ExpiryLog())
        folders = [Path(name) for name in watchdog.scratch()]
        assert [folder for folder in folders if not (folder.is_absolute() and folder.is_dir())] == []
        assert [folder for folder in folders if folder.is_symlink() or folder.stat().st_uid != os.geteuid()] == []
        watchdog.stop()
        assert [folder for folder in folders if folder.exists()] == []

    def test_it_ends_in_bounded_time_and_more_than_once(self, watchdog: Watchdog) -> None:
        threads, files = set(threading.enumerate()), _open_files()
        watchdog.start(ExpiryLog())
        watchdog.round_started([WatchedWorker(0, 0, os.getpid())])
        begun = _CLOCK.now()
        watchdog.stop()
        assert _CLOCK.now() - begun < self.stops_in
        watchdog.stop()
        assert (set(threading.enumerate()) - threads, _open_files() - files) == (set(), set())

    def test_it_need_not_have_been_started(self, watchdog: Watchdog) -> None:
        watchdog.stop()
        watchdog.stop()

    def test_it_has_no_fault_while_all_is_well(self, watchdog: Watchdog) -> None:
        assert watchdog.fault() == ""
        watchdog.start(ExpiryLog())
        assert watchdog.fault() == ""
        watchdog.stop()
        assert watchdog.fault() == ""

    def test_the_environment_is_text_and_stays_the_same(self, watchdog: Watchdog) -> None:
        watchdog.start(ExpiryLog())
        first = dict(watchdog.worker_environment())
        assert all(isinstance(text, str) and text for pair in first.items() for text in pair)
        assert dict(watchdog.worker_environment()) == first


class Rounds(LifeCycle):
    """The contract of a watchdog that watches each round's workers without timers. Tested if a test class defines how a
    worker hangs.

    Attributes:
        hangs: Python code of a worker that first works and then hangs in a way that this watchdog detects. Its stdout
            is its log file. Empty: skip the tests.
        works: Python code of a worker that never hangs.
        told_in: seconds within which a hung worker must be reported.
    """

    hangs: ClassVar[str] = ""
    works: ClassVar[str] = "while True: print('step', flush=True); time.sleep(0.02)"
    told_in: ClassVar[float] = 30.0

    @contextmanager
    def round(self, watchdog: Watchdog, folder: Path, *scripts: str) -> Iterator[list[WatchedWorker]]:
        """Start the workers of a round, and pass them to the watchdog when all have written output. They are killed at
        the end."""
        if not self.hangs:
            raise unittest.SkipTest("the test class does not define in `hangs` how a worker hangs for this watchdog")
        with ExitStack() as stack:
            environment = {**os.environ, **watchdog.worker_environment()}
            workers = [
                _logging(stack, folder / f"rank-{rank}.out", rank, code, environment)
                for rank, code in enumerate(scripts)
            ]
            written = "output of every worker, including the one that will hang (`hangs`): this"
            eventually(lambda: all(worker.logs[0].stat().st_size for worker in workers), _LONG, written)
            watchdog.round_started(workers)
            yield workers

    def test_a_round_of_workers_is_taken_at_once(self, watchdog: Watchdog, tmp_path: Path) -> None:
        """`round_started` must return quickly: for workers with and without logs, for ended processes, for none."""
        _started(watchdog)
        with subprocess.Popen([sys.executable, "-c", ""]) as ended:
            pass
        for workers in ([WatchedWorker(0, 4, os.getpid())], [WatchedWorker(0, 0, ended.pid, (tmp_path / "gone",))], []):
            begun = _CLOCK.now()
            watchdog.round_started(workers)
            assert _CLOCK.now() - begun < self.stops_in, "round_started blocks the agent"
        assert watchdog.fault() == ""

    def test_the_worker_that_hangs_is_told(self, watchdog: Watchdog, tmp_path: Path) -> None:
        told = _started(watchdog)
        with self.round(watchdog, tmp_path, self.works, self.hangs) as (_, hanging):
            assert told.pids(1, self.told_in) == [hanging.pid]
            (expiry,) = told.expiries()
            assert expiry.reason, "without a reason, it would be reported as an expired timer"
            assert expiry.late >= 0

    def test_it_is_told_once_in_every_round(self, watchdog: Watchdog, tmp_path: Path) -> None:
        told, begun = _started(watchdog), _CLOCK.now()
        with self.round(watchdog, tmp_path, self.works, self.hangs) as (_, first):
            assert told.pids(1, self.told_in) == [first.pid]
            assert not threading.Event().wait(_CLOCK.now() - begun)
            assert told.pids(1, self.told_in) == [first.pid]
            (tmp_path / "2").mkdir()
            with self.round(watchdog, tmp_path / "2", self.hangs) as (second,):
                assert told.pids(2, self.told_in) == [first.pid, second.pid]


class Timers:
    """The contract of a watchdog with timers, which provides its workers with a client for `expires`.

    Attributes:
        run_id: the job id in the workers' requests.
        punctual: seconds after the deadline within which an expiry must be reported.
    """

    run_id: ClassVar[str] = "contract"
    punctual: ClassVar[float] = 1.0

    @contextmanager
    def worker(self, watchdog: Watchdog, script: str) -> Iterator[_Worker]:
        """A worker of this watchdog, which is killed at the end."""
        environment = {**os.environ, "TORCHELASTIC_RUN_ID": self.run_id, **watchdog.worker_environment()}
        command = [sys.executable, "-c", _PRELUDE + script]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True) as process:
            try:
                yield _Worker(process)
            finally:
                process.kill()

    def test_a_hung_worker_is_told_in_time(self, watchdog: Watchdog) -> None:
        told = _with_timers(watchdog)
        with self.worker(watchdog, "say('up'); wait()\nwith expires(0.3, 'step'): say('in'); wait()") as worker:
            worker.hear()
            begun = _CLOCK.now()
            worker.go_on()
            worker.hear()
            entered = _CLOCK.now()
            assert told.scopes("step") == []
            (expiry,) = told.expiries()
            assert (expiry.worker_pid, expiry.reason) == (worker.pid, "")
            assert 0 <= expiry.late < self.punctual
            assert later(begun, 0.3) <= told.at[0] < later(entered, 0.3 + self.punctual)

    def test_a_worker_that_leaves_in_time_is_not_told(self, watchdog: Watchdog) -> None:
        told = _with_timers(watchdog)
        script = "for step in range(100): leave(0.3, f'step {step % 3}')\nsay_held_up()" + _last(0.4)
        with self.worker(watchdog, script) as worker:
            assert _wrong(told.scopes(), worker.hear()) == []

    def test_an_expiry_is_told_once(self, watchdog: Watchdog) -> None:
        told = _with_timers(watchdog)
        script = "with expires(0.05, 'first'): wait()\nwith expires(0.05, 'second'): wait()" + _last(0.05)
        with self.worker(watchdog, script) as worker:
            assert told.scopes("first") == []
            worker.go_on()
            assert told.scopes("second") == ["first"]
            worker.go_on()
            assert told.scopes() == ["first", "second"]

    def test_a_timer_that_is_acquired_again_starts_anew(self, watchdog: Watchdog) -> None:
        told = _with_timers(watchdog)
        again = "with expires(60, 'step'):" + _last(0.3).replace("\n", "\n  ")
        with self.worker(watchdog, f"leave(0.2, 'step')\nsay_held_up()\n{again}") as worker:
            assert _wrong(told.scopes(), worker.hear()) == []

    def test_blocks_within_blocks(self, watchdog: Watchdog) -> None:
        told = _with_timers(watchdog)
        script = """
with expires(0.1, 'outer'):
    with expires(60, 'inner'): pass
    wait()
"""
        with self.worker(watchdog, script):
            assert told.scopes("outer") == []

    def test_one_of_several_hangs(self, watchdog: Watchdog) -> None:
        told = _with_timers(watchdog)
        well = "with expires(60, 'step'): say('in'); wait()"
        with self.worker(watchdog, well) as one, self.worker(watchdog, well) as two:
            assert one.hear() == two.hear() == "in"
            with self.worker(watchdog, _last(0.1)) as three:
                assert told.scopes() == []
                assert [expiry.worker_pid for expiry in told.expiries()] == [three.pid]
            one.end()
            two.end()

    def test_a_forked_process_has_timers_of_its_own(self, watchdog: Watchdog) -> None:
        told = _with_timers(watchdog)
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
            child = int(worker.hear())
            told.scopes("step")
            assert [expiry.worker_pid for expiry in told.expiries()] == [child]
            worker.end()

    def test_a_worker_that_has_ended_does_not_hang(self, watchdog: Watchdog) -> None:
        told = _with_timers(watchdog)
        with self.worker(watchdog, "with expires(1.0, 'step'): os._exit(0)") as worker:
            worker.end()
            with self.worker(watchdog, _last(1.1)):
                assert told.scopes() == []

    def test_none_of_many_requests_is_lost(self, watchdog: Watchdog) -> None:
        told = _with_timers(watchdog)
        script = "for step in range(1000): leave(1.0 + step / 1e4, f'{step}')\nsay_held_up()\n"
        with self.worker(watchdog, script) as one, self.worker(watchdog, f"{script}wait(){_last(1.2)}") as two:
            held_up = f"{one.end().strip()},{two.hear()}"
            two.go_on()
            assert _wrong(told.scopes(), held_up) == []

    def test_a_worker_that_is_not_watched_any_more(self, watchdog: Watchdog) -> None:
        """After the watchdog has stopped, running blocks can be left, and new ones raise an error in bounded time."""
        told = _with_timers(watchdog)
        script = """
with expires(60, 'first'): say('in'); wait()
say('out')
try:
    with expires(60, 'second'): say('in')
except OSError: say('refused')
"""
        with self.worker(watchdog, script) as worker:
            assert worker.hear() == "in"
            watchdog.stop()
            worker.go_on()
            assert worker.hear() == "out"
            assert worker.hear() == "refused"
            worker.end()
        assert told.expiries() == []

    def test_nothing_is_told_after_the_end(self, watchdog: Watchdog) -> None:
        told = _with_timers(watchdog)
        with self.worker(watchdog, "say('up'); wait()\nwith expires(0.4, 'step'): say('in'); wait()") as worker:
            worker.hear()
            begun = _CLOCK.now()
            worker.go_on()
            worker.hear()
            watchdog.stop()
            in_time, before = _CLOCK.now() - begun < 0.2, told.expiries()
            assert before == [] or not in_time  # on a stalled machine, the timer may expire before the stop
            assert not threading.Event().wait(0.5)
        assert told.expiries() == before


class WatchdogContract(Rounds, Timers):
    """See `interfaces.watchdog.Watchdog`. For pytest: inherit from this class, and define a fixture `watchdog`, a
    watchdog of the job `run_id` that was not started yet. The fixture stops it at the end.

    Timer tests are skipped if `worker_environment` has no client for `elastic_core.watchdog.expires`. Tests of hangs
    without timers are skipped if the test class does not define `hangs`.
    """


def _logging(stack: ExitStack, log: Path, rank: int, code: str, env: Mapping[str, str]) -> WatchedWorker:
    """A worker that writes to a log file."""
    with log.open("wb") as output:
        command = [sys.executable, "-c", f"import os, sys, time\n{code}"]
        process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, env=env))
    stack.callback(process.kill)
    return WatchedWorker(rank, rank, process.pid, (log,))


def _open_files() -> set[tuple[str, str]]:
    """Descriptors with their targets; other threads may close theirs at any time."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing itself
            found.add((link.name, str(link.readlink())))
    return found
