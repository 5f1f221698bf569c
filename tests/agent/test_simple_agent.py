"""Agents in torch's style: subclasses that start, stop, monitor and shut down their workers."""

from __future__ import annotations

import signal
import time

import pytest
from agent_fakes import FakeRounds, RecordingObserver, round_info
from elastic_testing import MemoryBackend, SharedMemory

from elastic_core.agent import RunResult, SimpleElasticAgent, WorkerSpec, WorkerState
from elastic_core.builtin import MemoryStore
from elastic_core.errors import (
    ProcessFailure,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
    SignalException,
)
from elastic_core.interfaces.node import Member, Node, Round
from elastic_core.rendezvous import DynamicRendezvousHandler, PrefixedStores, RendezvousSettings, RendezvousTimeout

RUNS = RunResult(WorkerState.HEALTHY)
DONE = RunResult(WorkerState.SUCCEEDED, return_values={0: "a", 1: "b"})
FAILED = RunResult(
    WorkerState.FAILED, failures={1: ProcessFailure(1, 11, 3, global_rank=1, reason="exit code 3", round=1)}
)


class PolledAgent(SimpleElasticAgent):
    """Returns the given results, one for each check; the last one is repeated."""

    def __init__(self, spec, results, observer=None, **timeouts):
        super().__init__(spec, observer=observer, **timeouts)
        self.results = list(results)
        self.calls = []

    def _start_workers(self, worker_group):
        self.calls.append("start")
        return {worker.local_rank: 10 + worker.local_rank for worker in worker_group.workers}

    def _stop_workers(self, worker_group):
        self.calls.append("stop")

    def _monitor_workers(self, worker_group):
        return self.results.pop(0) if len(self.results) > 1 else self.results[0]

    def _shutdown(self, death_sig=signal.SIGTERM, timeout=30.0):
        self.calls.append(("shutdown", death_sig, timeout))


@pytest.fixture
def make_agent(scripted_handler):
    made = []

    def make_agent(results, agent=PolledAgent, handler=None, observer=None, max_restarts=3, **timeouts):
        handler = handler or scripted_handler()
        spec = WorkerSpec("default", 2, handler, monitor_interval=0.001, max_restarts=max_restarts)
        made.append(agent(spec, results, observer=observer, **timeouts))
        return made[-1]

    yield make_agent
    for agent in made:
        agent.close()


def test_monitor_interval_of_0_does_not_spin(scripted_handler):
    checks = 50
    agent = PolledAgent(WorkerSpec("default", 2, scripted_handler(), monitor_interval=0), [RUNS] * checks + [DONE])
    begun = time.monotonic()
    assert agent.run() == DONE
    assert time.monotonic() - begun >= checks * 0.001 / 2  # an answer to a poll wakes the agent earlier


def test_negative_exit_barrier_timeout_is_rejected(make_agent):
    with pytest.raises(ValueError, match=r"exit_barrier_timeout of 0 s or more, found -1\.0"):
        make_agent([DONE], exit_barrier_timeout=-1.0)


SHUTDOWN = ("shutdown", signal.SIGTERM, 30.0)


def test_agent_runs_until_its_workers_succeed(make_agent, scripted_handler):
    handler = scripted_handler()
    agent = make_agent([RUNS, RUNS, RUNS, DONE], handler=handler)
    assert agent.run() == DONE
    assert agent.calls == ["start", SHUTDOWN]
    assert handler.closed
    group = agent.get_worker_group()
    assert (group.state, group.round, group.master_addr, group.master_port) == (
        WorkerState.SUCCEEDED,
        1,
        "10.0.0.7",
        29001,
    )
    assert [
        (w.local_rank, w.global_rank, w.role_rank, w.world_size, w.role_world_size, w.id) for w in group.workers
    ] == [
        (0, 0, 0, 2, 2, 10),
        (1, 1, 1, 2, 2, 11),
    ]


def test_agent_restarts_within_its_budget(make_agent, scripted_handler):
    handler = scripted_handler()
    agent = make_agent([FAILED, RUNS, FAILED, DONE], handler=handler, max_restarts=2)
    assert agent.run() == DONE
    assert agent.calls == ["start", "stop", "start", "stop", "start", SHUTDOWN]
    assert (agent.restart_count, handler.calls, agent.get_worker_group().round) == (2, 3, 3)


def test_agent_fails_when_the_budget_is_used_up(make_agent, scripted_handler):
    handler = scripted_handler()
    observer = RecordingObserver()
    agent = make_agent([FAILED], handler=handler, observer=observer, max_restarts=1)
    assert agent.run() == FAILED
    assert agent.calls == ["start", "stop", "start", "stop", SHUTDOWN]
    assert handler.closed
    assert observer.facts[-1].reason == "rank 1: exit code 3; the only restart has been used (--max-restarts=1)"


def test_unhealthy_group_is_restarted_like_a_failed_one(make_agent):
    agent = make_agent([RUNS, RunResult(WorkerState.UNHEALTHY), RUNS, DONE], max_restarts=1)
    assert agent.run() == DONE
    assert agent.calls == ["start", "stop", "start", SHUTDOWN]
    assert agent.restart_count == 1
    unwell = make_agent([RunResult(WorkerState.UNHEALTHY)], max_restarts=1)
    result = unwell.run()
    assert result.is_failed()
    assert [failure.reason for failure in result.failures.values()] == ["the group is UNHEALTHY"]
    assert unwell.calls == ["start", "stop", "start", "stop", SHUTDOWN]


@pytest.mark.integration
@pytest.mark.parametrize("state", [WorkerState.UNHEALTHY, WorkerState.FAILED, WorkerState.UNKNOWN])
def test_group_failure_without_worker_failure_uses_the_budget(state, make_agent):
    """With a round handler, other nodes count the reported failures."""
    settings = RendezvousSettings("job", 1, 1, RendezvousTimeout(join=20, last_call=0.1))
    stores = PrefixedStores(MemoryStore(), "job", "127.0.0.1")
    handler = DynamicRendezvousHandler(
        MemoryBackend(SharedMemory()), settings, Node("a", local_world_size=2, max_restarts=2), stores
    )
    agent = make_agent([RunResult(state)], handler=handler, max_restarts=2)
    result = agent.run()
    assert result.state is WorkerState.FAILED
    assert [failure.reason for failure in result.failures.values()] == [f"the group is {state.value}"]
    assert agent.calls.count("start") == 3
    assert agent.restart_count == 2
    assert handler.shutdown()


def test_waiting_nodes_trigger_a_new_round_for_free(make_agent, scripted_handler):
    class RunsOutOfRounds(PolledAgent):
        def _monitor_workers(self, worker_group):
            return RUNS if worker_group.round < 3 else DONE

    handler = scripted_handler(waiting=[0, 3, 0, 1])
    agent = make_agent([], RunsOutOfRounds, handler=handler, max_restarts=0)
    assert agent.run() == DONE
    assert agent.calls == ["start", "stop", "start", "stop", "start", SHUTDOWN]
    assert (agent.restart_count, agent.get_worker_group().round) == (0, 3)


def test_signal_is_forwarded_and_rendezvous_stays_open(make_agent, scripted_handler):
    handler = scripted_handler()
    agent = make_agent([RUNS], handler=handler, shutdown_timeout=7.0)
    agent.receive_signal(signal.SIGINT)
    with pytest.raises(SignalException) as left:
        agent.run()
    assert left.value.sigval is signal.SIGINT
    assert agent.calls[-2:] == [("shutdown", signal.SIGINT, 7.0), ("shutdown", signal.SIGTERM, 7.0)]
    assert agent.get_worker_group().state is WorkerState.STOPPED
    assert not handler.closed


def test_invalid_signal_number_is_rejected(make_agent):
    with pytest.raises(ValueError, match="12345"):
        make_agent([RUNS]).receive_signal(12345)


@pytest.mark.parametrize(("result", "waiting"), [(FAILED, []), (RUNS, [1])])
def test_signal_during_a_stop_prevents_the_next_rendezvous(result, waiting, make_agent, scripted_handler):
    class SignaledWhileStopping(PolledAgent):
        def _stop_workers(self, worker_group):
            self.receive_signal(signal.SIGTERM)
            self._wait_for_events()  # like the local agent: the signal is handled while its workers exit
            super()._stop_workers(worker_group)

    handler = scripted_handler(waiting=waiting)
    agent = make_agent([result], SignaledWhileStopping, handler)
    with pytest.raises(SignalException):
        agent.run()
    assert handler.calls == 1


class Extended(PolledAgent):
    """Every extension point, extended."""

    def _rendezvous(self, worker_group):
        self.calls.append("rendezvous")
        super()._rendezvous(worker_group)
        worker_group.master_addr = "elsewhere"

    def _assign_worker_ranks(self, store, group_rank, group_world_size, spec):
        self.calls.append(("ranks", group_rank, group_world_size, spec.local_world_size))
        store.set("seen", "yes")
        workers = super()._assign_worker_ranks(store, group_rank, group_world_size, spec)
        for worker in workers:
            worker.role_rank = worker.local_rank + 40
        return workers

    def _initialize_workers(self, worker_group):
        self.calls.append("initialize")
        super()._initialize_workers(worker_group)

    def _restart_workers(self, worker_group):
        self.calls.append("restart")
        super()._restart_workers(worker_group)

    def _exit_barrier(self):
        self.calls.append("barrier")
        super()._exit_barrier()


def test_extension_points_are_called_and_may_call_super(make_agent):
    agent = make_agent([FAILED, DONE], Extended)
    agent.run()
    joined = ["initialize", "rendezvous", ("ranks", 0, 1, 2), "start"]
    assert agent.calls == [*joined, "stop", "restart", *joined, "barrier", SHUTDOWN]
    group = agent.get_worker_group()
    assert (group.master_addr, group.store.get("seen")) == ("elsewhere", b"yes")
    assert [worker.role_rank for worker in group.workers] == [40, 41]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RendezvousClosedError("closed by node9: done"), "closed by node9: done"),
        (RendezvousTimeoutError("too few"), "too few"),
        (RendezvousConnectionError("no answer"), "no answer"),
        (RendezvousStateError("version 9"), "version 9"),
        (ValueError("a broken handler"), "ValueError: a broken handler"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_handler_errors_reach_the_caller(error, reason, make_agent, scripted_handler):
    def refuse():
        raise error

    handler, observer = scripted_handler({1: refuse}), RecordingObserver()
    agent = make_agent([RUNS], handler=handler, observer=observer)
    with pytest.raises(type(error)) as raised:
        agent.run()
    assert raised.value is error
    assert agent.calls == [SHUTDOWN]
    assert not handler.closed
    assert (observer.facts[-1].state, observer.facts[-1].reason) == ("FAILED", reason)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"world_size": 2}, "nodes with 2 of 'default'"),
        ({"rank": 1}, "nodes with 2 of 'default'"),
        ({"formed": Round(1, (Member("a", "", "", "default", 3),))}, "nodes with 3 of 'default'"),
        ({"formed": Round(1, (Member("a", "", "", "reader", 2),))}, "nodes with 2 of 'reader'"),
        ({"formed": Round(1, ())}, "nodes with none"),
    ],
)
def test_round_that_does_not_match_the_node_is_rejected(changes, found, make_agent, scripted_handler):
    handler = scripted_handler()
    formed = Round(1, (Member("a", "", "", "default", 2),))
    handler.script[1] = lambda: handler.round_of_one(**{"formed": formed, **changes})
    with pytest.raises(RendezvousStateError, match=f"has 2 worker.s. of role 'default'; found {found}"):
        make_agent([RUNS], handler=handler).run()


@pytest.mark.parametrize(
    ("result", "reason", "error"),
    [
        (DONE, "every worker succeeded", RendezvousConnectionError("host gone")),
        (FAILED, "rank 1: exit code 3; no restart is allowed", ValueError("host gone")),
    ],
)
def test_unreachable_store_at_the_end_keeps_the_result(result, reason, error, make_agent, scripted_handler):
    handler = scripted_handler(closing_raises=error)
    observer = RecordingObserver()
    agent = make_agent([result], handler=handler, observer=observer, max_restarts=0)
    assert agent.run() == result
    assert observer.facts[-1].reason.startswith(reason)
    assert observer.facts[-1].reason.endswith("; the other nodes could not be notified: host gone")


def test_keyboard_interrupt_stops_the_workers(make_agent):
    class Interrupted(PolledAgent):
        def _monitor_workers(self, worker_group):
            raise KeyboardInterrupt

    observer = RecordingObserver()
    agent = make_agent([RUNS], Interrupted, observer=observer)
    with pytest.raises(KeyboardInterrupt):
        agent.run()
    assert agent.calls == ["start", SHUTDOWN]
    assert (observer.facts[-1].state, observer.facts[-1].reason) == ("STOPPED", "interrupted from the keyboard")


def test_shutdown_error_fails_the_run(make_agent):
    class BreaksAtTheEnd(PolledAgent):
        def _shutdown(self, death_sig=signal.SIGTERM, timeout=30.0):
            raise OSError("stuck")

    observer = RecordingObserver()
    with pytest.raises(OSError, match="stuck"):
        make_agent([DONE], BreaksAtTheEnd, observer=observer).run()
    assert (observer.facts[-1].state, observer.facts[-1].reason) == ("FAILED", "OSError: stuck")


class OwnBarrier(PolledAgent):
    def _exit_barrier(self):
        self.calls.append("barrier")


def test_exit_barrier_can_be_overridden(make_agent):
    handler = FakeRounds([round_info(1, [("default", 2)])])
    agent = make_agent([DONE], OwnBarrier, handler=handler)
    assert agent.run() == DONE
    assert agent.calls == ["start", "barrier", SHUTDOWN]
    assert handler.calls_to("report_success") == [()]


def test_second_run_raises_runtime_error(make_agent):
    agent = make_agent([DONE])
    agent.run()
    with pytest.raises(RuntimeError, match="an agent runs only once"):
        agent.run()
