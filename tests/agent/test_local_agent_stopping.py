"""How the local agent stops: signals while it runs, joins and stops; workers that ignore SIGTERM or SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import pytest
from agent_fakes import FakeWorkers
from elastic_testing import FakeClock
from round_of_two import succeed

from elastic_core import report
from elastic_core.clock import SystemClock
from elastic_core.errors import (
    ConfigurationError,
    ExitCode,
    Problem,
    SignalException,
    UnkillableWorkersError,
    failures_of,
)
from elastic_core.interfaces.workers import Expiry, Leftover

FOREVER = 3600.0
TERM, KILL, CONT = signal.SIGTERM, signal.SIGKILL, signal.SIGCONT


def fails(plan, workers):
    workers.end(0, 3)


def test_signal_stops_running_workers(make_node):
    node = make_node(lambda plan, workers: node.agent.receive_signal(TERM))
    with pytest.raises(SignalException, match="stopped by SIGTERM") as left:
        node.run()
    assert report.exit_code_of(left.value) == 128 + 15
    assert node.workers.signals == [TERM, CONT]
    assert not node.handler.closed
    assert (node.finished.state, node.finished.reason) == ("STOPPED", str(left.value))


def test_exits_during_a_stop_are_reported(make_node):
    """Otherwise the status would show them as running for the whole grace period."""
    node = make_node(fails)
    node.run()
    assert [(ended.local_rank, ended.exitcode) for ended in node.observer.exits[:2]] == [(0, 3), (1, -15)]


def test_signal_interrupts_joining(make_node, scripted_handler):
    joined = []

    def join():
        joined.append(threading.current_thread())
        node.agent.receive_signal(TERM)
        handler.released.wait(FOREVER)

    handler = scripted_handler({1: join})
    node = make_node(handler=handler)
    begun = SystemClock().now()
    with pytest.raises(SignalException):
        node.run()
    assert SystemClock().now() - begun < 30
    assert node.facts == ["AgentFinished"]
    assert not handler.closed
    # The joining thread ends with the handler, and its result is dropped.
    (joining,) = joined
    handler.shutdown()
    joining.join(60)
    assert not joining.is_alive()


def test_signal_ends_the_wait_for_the_starters_preparation(make_node):
    ready = threading.Event()
    node = make_node()

    def prepare():
        node.agent.receive_signal(TERM)
        ready.wait(60)

    node.workers.prepare = prepare
    with pytest.raises(SignalException):
        node.agent.run()
    assert not ready.is_set()
    assert node.workers.plans == []
    ready.set()


def test_workers_start_after_the_starters_preparation(make_node):
    node = make_node(lambda plan, workers: [workers.end(rank, 0) for rank in workers.running()])
    node.workers.prepare = lambda: steps.append(len(node.workers.plans))
    steps = []
    assert not node.agent.run().is_failed()
    assert steps == [0]


def test_signal_takes_precedence_over_concurrent_failure(make_node):
    def on_start(plan, workers):
        workers.end(0, 3)
        node.agent.receive_signal(TERM)

    node = make_node(on_start, max_restarts=3)
    with pytest.raises(SignalException):
        node.run()
    assert len(node.workers.plans) == 1
    assert node.facts == ["RoundFormed", "WorkersStarted", "WorkerFailed", "AgentFinished"]


class SignaledAgain(FakeWorkers):
    """Workers that ignore SIGTERM. When they are stopped, `before` is called and the agent gets the signal `again`."""

    receive_signal = None
    again = signal.SIGINT

    def before(self):
        pass

    def send_signal(self, signum):
        super().send_signal(signum)
        if signum == CONT:
            self.before()
            self.receive_signal(self.again)


def test_second_signal_ends_the_grace_period(make_node):
    clock = FakeClock()
    workers = SignaledAgain(lambda plan, workers: node.agent.receive_signal(TERM), ignore_signals=[0, 1])
    workers.before = lambda: clock.advance(0.5)
    node = make_node(workers=workers, clock=clock, shutdown_timeout=FOREVER)
    workers.receive_signal = node.agent.receive_signal
    begun = SystemClock().now()
    with pytest.raises(SignalException):
        node.run()
    assert SystemClock().now() - begun < 30
    assert workers.signals == [TERM, CONT, KILL]


def test_simultaneous_signals_are_one_request(make_node):
    """A terminal and a wrapper may both forward a single request, as may a preStop hook and the kubelet. This must not
    shorten the grace period."""
    workers = SignaledAgain(lambda plan, workers: node.agent.receive_signal(TERM), ignore_signals=[0, 1])
    node = make_node(workers=workers, shutdown_timeout=0.3)
    workers.receive_signal = node.agent.receive_signal
    begun = SystemClock().now()
    with pytest.raises(SignalException):
        node.run()
    assert SystemClock().now() - begun >= 0.3


def test_sigterm_right_after_another_signal_is_forwarded(make_node):
    """A preStop hook may send another signal first."""
    workers = SignaledAgain(lambda plan, workers: node.agent.receive_signal(signal.SIGINT), ignore_signals=[0, 1])
    workers.again = TERM
    node = make_node(workers=workers, shutdown_timeout=0.3)
    workers.receive_signal = node.agent.receive_signal
    with pytest.raises(SignalException) as caught:
        node.run()
    assert caught.value.sigval is TERM
    assert workers.signals == [signal.SIGINT, CONT, TERM, KILL]


class Unlisted(FakeWorkers):
    """A platform without a process table: leftover processes are unknown."""

    def leftovers(self):
        return []


def test_surviving_workers_are_stopped_without_process_table(make_node):
    node = make_node(workers=Unlisted(fails), max_restarts=1)
    assert node.run().is_failed()
    assert node.workers.signals == [TERM, CONT] * 2


class SlowConsole(FakeWorkers):
    """The output of a round is delivered once `deliver` is called."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.reader, self.writer = os.pipe()
        self.pipe = contextlib.ExitStack()
        for end in (self.reader, self.writer):
            self.pipe.callback(os.close, end)
        self.waits = 0

    def drain(self):
        self.waits += 1
        self.on_drain()
        return self.reader

    def deliver(self):
        os.write(self.writer, b"!")

    def close(self):
        self.pipe.close()  # closes each end only once
        super().close()


def test_agent_waits_for_output_delivery(make_node):
    workers = SlowConsole(lambda plan, workers: [workers.end(rank, 0) for rank in (0, 1)])
    timer = threading.Timer(0.2, workers.deliver)
    workers.on_drain = lambda: timer.start() if workers.waits == 1 else None
    node = make_node(workers=workers)
    assert node.run().state.value == "SUCCEEDED"
    timer.join()


def test_signal_ends_the_wait_for_a_stalled_console(make_node):
    workers = SlowConsole(lambda plan, workers: [workers.end(rank, 0) for rank in (0, 1)])
    timer = threading.Timer(0.1, lambda: node.agent.receive_signal(TERM))
    workers.on_drain = lambda: timer.start() if workers.waits == 1 else None
    node = make_node(workers=workers)
    begun = SystemClock().now()
    with pytest.raises(SignalException):
        node.run()
    assert SystemClock().now() - begun < 25  # without a signal the agent waits 30 s
    timer.join()


class StartsOnce(FakeWorkers):
    """The second round cannot start, for example because the log folder's disk is full."""

    def start(self, plan):
        if plan.round > 1:
            raise ConfigurationError(Problem("--log-dir", "the disk is full"))
        return super().start(plan)


def test_error_in_a_restart_keeps_the_earlier_failure(make_node):
    node = make_node(workers=StartsOnce(fails), max_restarts=3)
    with pytest.raises(ConfigurationError) as left:
        node.run()
    assert list(failures_of(left.value)) == [0]


def test_workers_ignoring_sigterm_are_killed_after_grace_period(make_node):
    workers = FakeWorkers(lambda plan, workers: node.agent.receive_signal(TERM), ignore_signals=[1])
    node = make_node(workers=workers, shutdown_timeout=0.1)
    begun = SystemClock().now()
    with pytest.raises(SignalException):
        node.run()
    assert SystemClock().now() - begun >= 0.1
    assert workers.signals == [TERM, CONT, KILL]


def test_grace_period_applies_after_a_failure(make_node):
    node = make_node(workers=FakeWorkers(fails, ignore_signals=[1]), shutdown_timeout=0.1, max_restarts=1)
    assert node.run().is_failed()
    assert node.workers.signals == [TERM, CONT, KILL] * 2


def test_unkillable_hung_worker_has_failed(make_node):
    workers = FakeWorkers(lambda plan, workers: node.agent.timer_expired(Expiry(1001, "step")), unkillable=[1])
    node = make_node(workers=workers, shutdown_timeout=0.0, kill_timeout=0.1, max_restarts=3)
    with pytest.raises(UnkillableWorkersError) as left:
        node.run()
    assert {rank: failure.hung for rank, failure in left.value.failures.items()} == {1: True}
    assert "1 process(es) still exist 0.1 s after SIGKILL: 1001" in str(left.value)
    assert len(workers.killed) == 1


def test_unkillable_worker_is_reported_with_the_first_failure(make_node):
    node = make_node(workers=FakeWorkers(fails, unkillable=[1]), shutdown_timeout=0.0, kill_timeout=0.1, max_restarts=3)
    with pytest.raises(UnkillableWorkersError) as left:
        node.run()
    assert ": 1001 (fake worker 1) in state D, in fake_wait" in str(left.value)
    assert {rank: failure.reason for rank, failure in left.value.failures.items()} == {0: "exit code 3"}
    assert report.exit_code_of(left.value) == ExitCode.WORKER_WOULD_NOT_DIE == 6
    assert node.facts == ["RoundFormed", "WorkersStarted", "WorkerFailed", "AgentFinished"]
    assert not node.handler.closed


def test_unkillable_worker_is_reported_after_a_signal(make_node):
    workers = FakeWorkers(lambda plan, workers: node.agent.receive_signal(TERM), unkillable=[0, 1])
    node = make_node(workers=workers, shutdown_timeout=0.0, kill_timeout=0.05)
    with pytest.raises(UnkillableWorkersError, match=r"2 process\(es\) still exist") as left:
        node.run()
    assert left.value.failures == {}
    assert node.finished.state == "FAILED"


class LateDeath(FakeWorkers):
    """The last worker exits just as the agent gives up: the kill timeout is over, but no process is left to report."""

    def __init__(self, on_start, clock, **kwargs):
        super().__init__(on_start, **kwargs)
        self.clock = clock
        self.checks = []

    def send_signal(self, signum):
        super().send_signal(signum)
        if signum == KILL:
            self.clock.advance(5.0)

    def leftovers(self):
        self.checks.append([] if KILL in self.signals else super().leftovers())
        return self.checks[-1]


def test_worker_dying_at_the_kill_timeout_is_not_reported(make_node):
    clock = FakeClock()
    workers = LateDeath(fails, clock, unkillable=[1])
    node = make_node(workers=workers, clock=clock, shutdown_timeout=0.0, kill_timeout=5.0, max_restarts=0)
    assert node.run().is_failed()
    assert workers.signals == [TERM, CONT, KILL, KILL]
    assert [len(check) for check in workers.checks[:2]] == [1, 0]  # one to stop, none to report


class SlowToDie(FakeWorkers):
    """Descendants that exit a while after SIGTERM and have no sentinel."""

    def __init__(self, on_start):
        super().__init__(on_start)
        self.left = 3

    def leftovers(self):
        if self.signals:
            self.left = max(self.left - 1, 0)
        return [Leftover(4711, "S", "sleep 1000")] * min(self.left, 1)


def test_leftover_processes_are_stopped(make_node):
    node = make_node(workers=SlowToDie(succeed))
    assert not node.run().is_failed()
    assert node.workers.signals == [TERM, CONT]


class SlowToStop(FakeWorkers):
    """Every signal takes a while, and only the second SIGKILL has an effect."""

    def __init__(self, on_start, clock):
        super().__init__(on_start)
        self.clock = clock

    def send_signal(self, signum):
        self.clock.advance(10.0)
        if self.signals.count(KILL) == 1:
            super().send_signal(signum)
        else:
            self.signals.append(signum)


def test_long_stops_are_logged(make_node, logged):
    clock = FakeClock()
    node = make_node(
        workers=SlowToStop(fails, clock), clock=clock, shutdown_timeout=5, kill_timeout=100, max_restarts=0
    )
    assert node.run().is_failed()
    assert node.workers.signals == [TERM, CONT, KILL, KILL]
    lines = logged()
    assert 'still waiting: waiting_for="workers to stop" local_ranks=1 seconds=20 grace=5' in lines
    assert "workers stopped: seconds=40" in lines
