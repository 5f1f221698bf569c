"""Run an agent with a planted defect, to show that the campaign's checker finds defects.

    python -m benchmarks.planted NAME run <flags of elastic run>

replaces one or two functions in this process, and then runs `elastic` with the remaining arguments. Everything else is
real: the agent, its processes, sockets and stores. `DEFECTS` lists all defects. Those whose comments
have an A and a number are former bugs, found by experiments with real agents and recreated in the current code. The
checker must also find the invented defects.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from elastic_testing.campaign import Storm

NOW_AND_THEN_S = 15.0
"""`round_without_cause` ends a healthy round after this time."""

STAY_S = 3.0
"""With `two_groups`, workers that should have stopped keep running for this long."""

RECENT_S = 10.0
"""With `late_put`, a put is also treated as abandoned if a call went unanswered within this time before it."""

LEAK_BYTES = 2 * 2**20

_LAST_CALL = "--rdzv-conf=last_call_timeout=1"
"""Campaigns set this as well. If a flag is given twice, the last one applies."""


@dataclass(frozen=True)
class Defect:
    """A defect that can be planted.

    Args:
        what: the symptom for the user, in a sentence.
        plant: patches the code before the command line runs.
        backends: the entries of `benchmarks.campaign.WORLDS` in which it can appear, the most reliable one first.
        kinds: the smallest set of fault kinds that reveals it.
        flags: options of `elastic run` that it needs in addition to the defaults.
        faults: number of faults in a storm.
        like: fields of `benchmarks.campaign.Shape` that the job needs; the seed draws the rest.
        storm: a storm written by hand, if drawn storms seldom reveal the defect.
    """

    what: str
    plant: Callable[[], None]
    backends: tuple[str, ...]
    kinds: tuple[str, ...]
    flags: tuple[str, ...] = ()
    faults: int = 8
    like: Mapping[str, Any] = field(default_factory=dict)
    storm: Callable[[], Storm] = tuple


def put(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    """Replace an attribute with the result of passing it to `around`."""
    setattr(owner, name, around(getattr(owner, name)))


def module(name: str) -> Any:
    """Import a module of elastic_core. Some packages export a function with a module's name, which hides the module."""
    return importlib.import_module(f"elastic_core.{name}")


def own_place() -> int | None:
    """This agent's place in a campaign, from a node id such as `n0.3`; None outside campaigns."""
    found = [match[1] for word in sys.argv if (match := re.match(r"--node-id=n(\d+)\.", word))]
    return int(found[-1]) if found else None


def reword(pattern: str, instead: str) -> None:
    """Replace the matches of `pattern` in this agent's arguments, and drop an argument that becomes empty."""
    words = [re.sub(pattern, instead, word) for word in sys.argv]
    sys.argv[:] = [new for new, old in zip(words, sys.argv, strict=True) if new or not old]


def decide_by(change: Callable[..., Any]) -> None:
    """Replace the policy with `change(decide, roster, state, settings, now, enough_since, settled)`."""
    put(module("rendezvous.node"), "decide", lambda decide: lambda *seen: change(decide, *seen))


# -- former bugs: loss and silence


def no_grace() -> None:
    """A silent store gets no extra time, although its machine still answers."""
    from elastic_c10d.tcp_connector import TcpConnector

    put(TcpConnector, "grace", lambda _: property(lambda self: 0.0))


def fenced_exits() -> None:
    """An agent that has stopped its own workers exits with the code for an unreachable store."""
    from elastic_core.agent.agent import SimpleElasticAgent
    from elastic_core.errors import RendezvousConnectionError
    from elastic_core.interfaces.handler import Outcome

    order = module("agent.supervise").Order

    def around(supervise: Any) -> Any:
        def ends(budget: Any, seen: Any) -> Any:
            decision = supervise(budget, seen)
            if not (seen.found(Outcome.FENCED) and order.JOIN in decision.orders):
                return decision
            stop = (order.STOP,) if seen.running else ()
            return replace(decision, orders=(*stop, order.YIELD), cause=None, certain=True)

        return ends

    def yielding(performed: Any) -> Any:
        def performs(self: Any, seen: Any, decision: Any) -> NoReturn:
            if seen.found(Outcome.FENCED):
                raise RendezvousConnectionError(decision.reason)
            performed(self, seen, decision)
            raise AssertionError("a node that yields exits")

        return performs

    put(module("agent.agent"), "supervise", around)
    put(SimpleElasticAgent, "_yield", yielding)


def host_pauses() -> None:
    no_grace()
    fenced_exits()


def never_handed_over(only_when_done: bool = False) -> None:
    """The store's host does not hand the store over when it leaves: never, or not after its workers have succeeded."""
    from elastic_core.rendezvous.handler import DynamicRendezvousHandler

    def around(hand_over: Any) -> Any:
        def keeps(self: Any) -> bool:
            if only_when_done and not self._driver.ask(lambda node, now: node.membership.done):
                return bool(hand_over(self))
            return not self.hosts_store

        return keeps

    put(DynamicRendezvousHandler, "hand_over", around)


def host_leaves_early() -> None:
    """Flags shorten the failure timeout, because a campaign does not let the other nodes train for long."""
    host_pauses()
    never_handed_over(only_when_done=True)

    def around(await_others: Any) -> Any:
        return lambda seen, now, until, hosts_store=False: await_others(seen, now, until)

    put(module("agent.agent"), "await_others", around)


def dead_entries_stay() -> None:
    from elastic_core.rendezvous.roster import Observation

    put(Observation, "dead", lambda _: lambda self, state, now: None)


def round_before_stop() -> None:
    """The bug waited five seconds. This version does not wait, because a campaign's workers stop immediately."""

    def around(until: Any) -> Any:
        def soon(ready: Any, missing: Any, state: Any, settings: Any, since: Any) -> Any:
            full = len(ready) >= settings.max_nodes
            return None if full and missing else until(ready, missing, state, settings, since)

        return soon

    put(module("rendezvous.policy"), "_until", around)


def late_put() -> None:
    """An abandoned put is carried out when it does the most harm: as soon as a newer one has succeeded. Stopping a
    member in the middle of a put takes luck, so a put that follows an unanswered call is treated as abandoned, too."""
    from elastic_etcd.backend.backend import EtcdRendezvousBackend
    from elastic_etcd.client.errors import EtcdError, EtcdLeaseGone, EtcdUnreachable
    from elastic_etcd.client.values import Get, Put, Transaction, end_of

    from elastic_core.errors import RendezvousConnectionError

    given_up: dict[str, tuple[bytes, Transaction]] = {}
    unanswered: list[float] = []

    def unfenced(self: Any, key: str, entry: bytes) -> int:
        lease, nodes = self._lease.ensure(), self._keys.nodes
        count = Get(nodes, end_of(nodes), count_only=True)
        asked = Transaction([], [Put(self._keys.node(key), entry, lease), count], [])
        try:
            done = self._client.transact(asked)
        except EtcdLeaseGone:
            self._lease.gone(lease)
            raise
        except EtcdUnreachable:
            given_up.setdefault(key, (entry, asked))
            raise
        self._has_been_announced = True
        self._announced[key] = done.revision
        if key in given_up and given_up[key][0] != entry:
            with contextlib.suppress(EtcdError):
                self._client.transact(given_up.pop(key)[1])
        elif unanswered and time.monotonic() - unanswered[-1] < RECENT_S:
            given_up.setdefault(key, (entry, asked))
        return max(0, done.ranges[1].count - 1)

    def around(use: Any) -> Any:
        @contextlib.contextmanager
        def uses(self: Any, doing: str) -> Any:
            try:
                with use(self, doing):
                    yield
            except RendezvousConnectionError:
                unanswered.append(time.monotonic())
                raise

        return uses

    put(EtcdRendezvousBackend, "_put_entry", lambda _: unfenced)
    put(EtcdRendezvousBackend, "_while", around)


def drain_of_done() -> None:
    """The drain request comes from another process, so the leader ends the round instead."""
    from elastic_core.rendezvous.model import Cause, ended
    from elastic_core.rendezvous.policy import Write

    def around(decide: Any, roster: Any, state: Any, *rest: Any) -> Any:
        idle = [key for key in state.done if key in state.draining and key not in state.gone]
        if not (state.open and idle and state.busy):
            return decide(roster, state, *rest)
        name = state.names(idle)[0]
        return Write(ended(state, Cause.DRAINED, name, f"{name} is drained"), f"{name} is drained")

    decide_by(around)


def no_lifelines() -> None:
    """Disable lifelines, as in versions before them. They report most dead agents long before the lease expires."""
    from elastic_core.rendezvous.lifeline import Lifeline

    put(Lifeline, "listen", lambda _: lambda self, address: 0)


def lease_unknown() -> None:
    """Restarted agents reuse their predecessor's name, as in a job with `--node-id`."""
    from elastic_core.rendezvous.settings import RendezvousSettings

    no_lifelines()

    reword(r"^(--node-id=\w+)\.\d+$", r"\1")
    beats = property(lambda self: self.keep_alive_interval * self.keep_alive_max_attempt)
    put(RendezvousSettings, "failure_timeout", lambda _: beats)


def leader_wedged() -> None:
    """The first leader's writes are refused in later rounds, as if the state was too large."""
    from elastic_core.rendezvous.driver import Operations
    from elastic_core.rendezvous.election import Election

    wrote_first: list[bool] = []

    def around(written: Any) -> Any:
        def refuses(self: Any, operation: Any) -> Any:
            if operation.state.open and operation.state.round.number > 1 and wrote_first:
                raise ValueError("expected a state that the store takes, found one that is too large")
            answer = written(self, operation)
            if operation.state.open and operation.state.round.number == 1 and answer is not None and answer[2]:
                wrote_first.append(True)
            return answer

        return refuses

    put(Operations, "_written", around)
    put(Election, "failed", lambda _: lambda self, now: self)


def dead_after_success() -> None:
    """A member's success is recorded only when all members have succeeded."""
    from elastic_core.rendezvous.roster import Observation

    def around(succeeded: Any) -> Any:
        def together(state: Any, keys: Any, number: int) -> Any:
            return succeeded(state, keys, number) if set(state.busy) <= set(keys) else state

        return together

    put(module("rendezvous.policy"), "succeeded", around)
    put(Observation, "_gone", lambda _: lambda self, found, state: ())


def waits_for_beat() -> None:
    """Delays every message of a node, not only its departure. Flags make the next heartbeat distant."""
    from elastic_core.rendezvous.driver import Driver

    put(Driver, "_wake", lambda _: lambda self: None)


def own_limit() -> None:
    """The agent at place 0 allows no restarts; the other agents do. In addition, `begin` undoes a `leave`."""
    from elastic_core.rendezvous import model
    from elastic_core.rendezvous.codec import bounded
    from elastic_core.rendezvous.effects import ChangeState
    from elastic_core.rendezvous.node import Node
    from elastic_core.rendezvous.policy import is_certain

    if own_place() == 0:
        reword(r"^--max-restarts=\d+$", "--max-restarts=0")

    def fail(self: Any, failures: Any) -> None:
        report = self._report(tuple(map(bounded, failures.values())), is_certain(failures))
        own = self.entry.max_restarts

        def judged(state: Any, number: int, report: Any) -> Any:
            seen = replace(state, max_restarts=own)
            changed = model.failed(seen, number, report)
            return state if changed is seen else replace(changed, max_restarts=state.max_restarts)

        self.request(ChangeState(judged, (self.membership.round, report)))

    def around(begin: Any) -> Any:
        def begins(self: Any, now: Any) -> None:
            begin(self, now)
            self.membership = replace(self.membership, left=False)

        return begins

    put(Node, "fail", lambda _: fail)
    put(Node, "begin", around)


def apart_meet() -> None:
    put(module("rendezvous.policy"), "_meeting", lambda _: lambda ready, least: ready)


def apart_for_long() -> Storm:
    """Workers try to connect for half a minute, and two rounds fail in that time."""
    from elastic_testing.campaign import Fault, FaultWave

    return (FaultWave((Fault("apart", 0, lasts_s=85.0, other=1), Fault("worker_kill", 2, after_s=1.0))),)


def host_told_to_go() -> None:
    """A node that waits for a round gives up a lost store as early as a node that runs workers."""
    from elastic_core.rendezvous import messages
    from elastic_core.rendezvous.node import Node

    host_pauses()
    never_handed_over()

    def around(obstacle: Any) -> Any:
        def gives_up(self: Any, now: Any) -> Any:
            since, window = self.connection.since, self.settings.failure_timeout
            if self.membership.joins and self.membership.round and since is not None and now - since > window:
                return messages.no_answer(self.connection.outage, self.fault, window)
            return obstacle(self, now)

        return gives_up

    put(Node, "obstacle", around)


def names_by_pid() -> None:
    """Every agent is process 1, as in containers. Removes `--node-id`, so that the name is generated."""
    reword(r"^--node-id=.*$", "")
    for where in ("interfaces.node", "compose.agent"):
        put(module(where), "generated_name", lambda _: lambda host: f"{host}:1")


# -- groups, ranks and counts


def two_groups() -> None:
    """If a round ends without a failure, its workers keep running while the next round's workers start."""
    from elastic_core.agent.agent import SimpleElasticAgent
    from elastic_core.agent.interface import WorkerState
    from elastic_core.workers import sessions

    def around(restart_workers: Any) -> Any:
        def retry_now(self: Any, group: Any) -> None:
            current = self._processes._round
            if current is not None and group.state is WorkerState.HEALTHY:
                later = threading.Timer(STAY_S, sessions.send_all, (current.leaders, signal.SIGTERM))
                later.daemon = True
                later.start()
                self._processes.finish()
                group.state = WorkerState.STOPPED
            restart_workers(self, group)

        return retry_now

    put(SimpleElasticAgent, "_restart_workers", around)


def ranks_kept() -> None:
    from elastic_core.agent.agent import SimpleElasticAgent

    def around(assign: Any) -> Any:
        def keeps(self: Any, *place: Any) -> Any:
            before = [worker.global_rank for worker in self._worker_group.workers]
            workers = assign(self, *place)
            for worker, rank in zip(workers, before, strict=True):
                worker.global_rank = worker.global_rank if rank < 0 else rank
            return workers

        return keeps

    put(SimpleElasticAgent, "_assign_worker_ranks", around)


def counts_from_own_start() -> None:
    from elastic_core.agent.agent import SimpleElasticAgent

    first: list[int] = []

    def around(take_round: Any) -> Any:
        def counts(self: Any, info: Any) -> Any:
            formed = take_round(self, info)
            first.append(formed.restart_count)
            if self._budget.shared:
                self._budget = replace(self._budget, failures=formed.restart_count - first[0])
            return formed

        return counts

    put(SimpleElasticAgent, "_take_round", around)


def counted_twice() -> None:
    from elastic_core.rendezvous.policy import Write

    def around(decide: Any, roster: Any, state: Any, *rest: Any) -> Any:
        decision = decide(roster, state, *rest)
        formed = isinstance(decision, Write) and decision.state.round != state.round
        if formed and state.end is not None and state.end.counted:
            return Write(replace(decision.state, restarts=decision.state.restarts + 1), decision.reason)
        return decision

    decide_by(around)


def not_counted() -> None:
    def around(counted_failure: Any) -> Any:
        def forgives(state: Any, incurable: bool = False) -> Any:
            after = counted_failure(state, incurable)
            return after if after is state or after.closed else replace(after, restarts=state.restarts)

        return forgives

    for where in ("rendezvous.model", "rendezvous.policy"):
        put(module(where), "counted_failure", around)


def loss_is_failure() -> None:
    supervise = module("agent.supervise")

    def around(cause_of: Any) -> Any:
        def blames(verdict: Any) -> Any:
            cause = cause_of(verdict)
            return supervise.RestartCause.FAILURE if cause is supervise.RestartCause.LOST else cause

        return blames

    put(supervise, "_cause_of", around)


# -- rounds without a reason, and missing rounds


def round_without_cause() -> None:
    from elastic_core.rendezvous.model import Cause, ended
    from elastic_core.rendezvous.policy import Wait, Write

    begun: dict[int, Any] = {}

    def around(decide: Any, roster: Any, state: Any, settings: Any, now: Any, *rest: Any) -> Any:
        decision = decide(roster, state, settings, now, *rest)
        running = isinstance(decision, Wait) and state.open and not state.done and len(state.seats) > 1
        if not running or now - begun.setdefault(state.round, now) < NOW_AND_THEN_S:
            return decision
        return Write(ended(state, Cause.JOINED, "nobody", "now and then"), "now and then")

    decide_by(around)


def hasty() -> None:
    from elastic_core.rendezvous.roster import Observation

    put(Observation, "of", lambda _: classmethod(lambda cls, settings: cls(settings.keep_alive_interval, 2)))


def news_lost() -> None:
    """In every third round, only the leader learns that the round has ended."""
    from elastic_core.rendezvous.node import Node

    def around(state_changed: Any) -> Any:
        def deaf(self: Any) -> None:
            member, state = self.membership, self.state
            runs = state is not None and state.open and member.running and not member.done
            if not (runs and len(state.seats) > 1 and state.round.number % 3 == 0):
                state_changed(self)

        return deaf

    put(Node, "state_changed", around)


def loss_overlooked() -> None:
    def around(decide: Any, roster: Any, *rest: Any) -> Any:
        return decide(tuple(replace(seen, late=False, ended=False) for seen in roster), *rest)

    decide_by(around)


def no_place() -> None:
    from elastic_core.rendezvous.model import Cause
    from elastic_core.rendezvous.policy import Wait, Write

    def around(decide: Any, roster: Any, state: Any, *rest: Any) -> Any:
        decision = decide(roster, state, *rest)
        lets_in = state.open and isinstance(decision, Write) and not decision.state.open
        if lets_in and not decision.state.closed and decision.state.end.cause is Cause.JOINED:
            return Wait("the round runs")
        return decision

    decide_by(around)


def ids_ignored() -> None:
    from elastic_core.rendezvous.store_backend import StoreBackend

    owners: list[Any] = [StoreBackend]
    with contextlib.suppress(ImportError):
        from elastic_etcd.backend.backend import EtcdRendezvousBackend

        owners.append(EtcdRendezvousBackend)

    def around(init: Any) -> Any:
        def begins(self: Any, where: Any, run_id: str, *more: Any, **named: Any) -> None:
            init(self, where, "every-job", *more, **named)

        return begins

    for owner in owners:
        put(owner, "__init__", around)


# -- how workers and agents exit


def killed_at_once() -> None:
    from elastic_core.agent.process_agent import ProcessAgent

    def stop(self: Any, group: Any) -> None:
        self._group_stop.stop(signal.SIGKILL, self._shutdown_timeout)

    put(ProcessAgent, "_stop_workers", lambda _: stop)


def guardian_idle() -> None:
    from elastic_core.workers.guardian import Guardian

    def around(order: Any) -> Any:
        return lambda self, line: order(self, line) if line.startswith("scratch") else None

    put(Guardian, "_order", around)


def guardian_not_replaced() -> None:
    from elastic_core.workers.guardian import Guardian

    def lets_go(self: Any) -> None:
        self._lost = True

    put(Guardian, "_replace", lambda _: lets_go)


def ends_with_0() -> None:
    from elastic_core.agent.agent import SimpleElasticAgent
    from elastic_core.agent.interface import RunResult, WorkerState
    from elastic_core.errors import SignalException

    def around(leave: Any) -> Any:
        def leaves(self: Any, *seen: Any) -> Any:
            try:
                leave(self, *seen)
            except SignalException as error:
                if not seen:  # while it waits for a round
                    raise
                return RunResult(WorkerState.SUCCEEDED), str(error)

        return leaves

    put(SimpleElasticAgent, "_leave", around)


# -- leftovers and leaks


def folder_left() -> None:
    from elastic_core.workers.group import LocalWorkers
    from elastic_core.workers.guardian import Guardian

    def around(close: Any) -> Any:
        def forgets(self: Any) -> None:
            self._scratch = None
            close(self)

        return forgets

    put(LocalWorkers, "close", around)
    put(Guardian, "scratch", lambda _: lambda self, path: None)


def process_left() -> None:
    """Two minutes outlast the checker's wait, but are short enough that the processes do not fill the machine."""
    started: list[Any] = []

    def helper() -> None:
        started.append(subprocess.Popen(["sleep", "120"], start_new_session=True, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL))  # fmt: skip

    _with_every_round(helper)


def memory_grows() -> None:
    kept: list[bytearray] = []
    _with_every_round(lambda: kept.append(bytearray(os.urandom(2**10) * (LEAK_BYTES // 2**10))))


def sockets_left() -> None:
    kept: list[socket.socket] = []
    _with_every_round(lambda: kept.append(socket.socket()))


def _with_every_round(do: Callable[[], object]) -> None:
    from elastic_core.workers.group import LocalWorkers

    def around(start: Any) -> Any:
        def starts(self: Any, plan: Any) -> Any:
            do()
            return start(self, plan)

        return starts

    put(LocalWorkers, "start", around)


def no_lease() -> None:
    """A node that is killed, cut off or powered off stays listed forever, because its key has no lease."""
    from elastic_etcd.backend import backend

    no_lifelines()

    def around(made: Any) -> Any:
        return lambda key, value, lease=0: made(key, value, 0 if b"/nodes/" in key else lease)

    put(backend, "Put", around)


def leases_left() -> None:
    from elastic_etcd.backend.keys import StateKey

    def around(write: Any) -> Any:
        def grants(self: Any, *what: Any, **how: Any) -> Any:
            self._lease = 0
            return write(self, *what, **how)

        return grants

    put(StateKey, "write", around)


def member_not_replaced() -> None:
    from elastic_etcd.server import member

    def around(following: Any) -> Any:
        def gives_up(self: Any, own: Any) -> Any:
            return member.Wait("it has exited before") if self._process is not None else following(self, own)

        return gives_up

    put(member.ServedCluster, "_next", around)


_PUSHED = ("c10d", "etcd", "sqlite", "static")
_ANY = ("sqlite", "c10d", "etcd", "etcd served", "static")
_ETCD = ("etcd", "etcd served")

DEFECTS: dict[str, Defect] = {
    # A1. SIGSTOP of the agent that hosts the store, for longer than a failure timeout.
    "host_pauses": Defect(
        "if the agent that hosts the store pauses for a few seconds, healthy workers and other agents end",
        host_pauses, ("c10d", "static"), ("agent_stop",)),
    # A2.
    "fenced_exits": Defect(
        "an agent that was cut off from the store for too long exits, although the store recovers",
        fenced_exits, ("c10d", "static", "etcd", "etcd served"), ("link_cut",)),
    # A3.
    "host_leaves_early": Defect(
        "the agent that hosts the store leaves after its exit barrier, and the other nodes lose the store",
        host_leaves_early, ("c10d",), ("done", "agent_term"),
        (f"{_LAST_CALL},keep_alive_max_attempt=2", "--exit-barrier-timeout=1"), 1),
    # A4. A killed spare costs a round when the leader changes.
    "dead_entries_stay": Defect(
        "a killed agent's entry is never removed, and the next leader treats it as alive",
        dead_entries_stay, ("sqlite", "c10d"), ("spare_kill", "machine_off", "link_cut"), (), 30),
    # A5.
    "round_before_stop": Defect(
        "a spare replaces a node that is still stopping its workers",
        round_before_stop, ("sqlite", "etcd", "c10d"), ("newcomer", "worker_kill"), (), 30,
        {"nodes": 3, "slow": True}),
    # A6.
    "late_put": Defect(
        "an abandoned write arrives late and replaces a newer entry, and no further round forms",
        late_put, ("etcd",), ("member_stop", "worker_kill"), (), 30),
    # A7.
    "drain_of_done": Defect(
        "draining a node whose workers have succeeded restarts all other workers",
        drain_of_done, ("c10d", "etcd", "sqlite"), ("done", "drain")),
    # A8.
    "lease_unknown": Defect(
        "a restarted agent is refused for good while its predecessor's lease lives",
        lease_unknown, ("etcd",), ("agent_kill",), (f"{_LAST_CALL},lease_ttl=20",)),
    # A9.
    "leader_wedged": Defect(
        "a leader that cannot write continues to lead, and no further round forms",
        leader_wedged, _ANY, ("worker_kill",)),
    # A10.
    "dead_after_success": Defect(
        "an agent that dies after its workers have succeeded ends the other nodes' round",
        dead_after_success, ("etcd", "sqlite", "c10d"), ("done", "agent_kill")),
    # A11.
    "waits_for_beat": Defect(
        "a node reports failures and its departure only with its next heartbeat",
        waits_for_beat, _PUSHED, ("worker_kill",), (f"{_LAST_CALL},keep_alive_interval=120",)),
    # A12.
    "own_limit": Defect(
        "a failure ends the job because the reporting agent allows fewer restarts than the other agents",
        own_limit, _ANY, ("worker_kill",)),
    # A13.
    "apart_meet": Defect(
        "nodes that cannot reach each other share a round again and again, until no restart is left",
        apart_meet, ("etcd", "sqlite", "c10d"), (), like={"real": False}, storm=apart_for_long),
    # A14.
    "host_told_to_go": Defect(
        "the agent that hosts the store is asked to leave, and the other agents exit without a store",
        host_told_to_go, ("c10d",), ("agent_term", "drain")),
    # A15.
    "names_by_pid": Defect(
        "agents with the same host name and process id, as in containers, refuse each other",
        names_by_pid, ("sqlite", "c10d", "etcd", "etcd served"), ("worker_kill",)),
    "two_groups": Defect(
        "workers of two rounds train and write checkpoints at the same time",
        two_groups, ("sqlite", "etcd"), ("agent_kill",)),
    "ranks_kept": Defect(
        "a node keeps its rank when the group shrinks, so ranks have gaps or repeat",
        ranks_kept, _ANY[:4], ("agent_kill",)),
    "counts_from_own_start": Defect(
        "workers of one round get different restart counts",
        counts_from_own_start, _ANY, ("worker_kill", "agent_kill")),
    "counted_twice": Defect("a failure uses two restarts", counted_twice, _ANY, ("worker_kill",)),
    "not_counted": Defect("a failure uses no restart, so a broken script never ends", not_counted, _ANY,
                          ("worker_kill",)),
    "loss_is_failure": Defect(
        "the loss of a node is reported as a failure of the script", loss_is_failure, _ANY, ("agent_kill",)),
    "round_without_cause": Defect(
        "healthy workers are restarted without a cause", round_without_cause, _ANY,
        ("worker_stop",)),
    "hasty": Defect(
        "a node is declared lost after two seconds of silence instead of five", hasty, ("sqlite", "c10d", "static"),
        ("agent_stop",)),
    "news_lost": Defect(
        "a healthy node does not learn that the round has ended, and its workers hang", news_lost, _ANY,
        ("worker_kill",)),
    "loss_overlooked": Defect(
        "the loss of a machine is not noticed, and the other machines' workers hang", loss_overlooked,
        ("sqlite", "c10d", "static"), ("machine_off",)),
    "no_place": Defect(
        "a node that returns while a smaller round runs waits forever", no_place, _ANY[:4],
        ("agent_kill",)),
    "ids_ignored": Defect(
        "a job with another id at the same endpoint is treated as a node of this job", ids_ignored,
        ("sqlite", "c10d", "etcd"), ("second_job", "agent_kill")),
    "killed_at_once": Defect(
        "healthy workers are killed without SIGTERM, and write no checkpoint", killed_at_once, _ANY,
        ("worker_kill",)),
    "guardian_idle": Defect("a killed agent's workers keep running", guardian_idle, _ANY, ("agent_kill",)),
    "guardian_not_replaced": Defect(
        "if an agent is killed after its guardian, its workers keep running", guardian_not_replaced, _ANY,
        ("guardian_kill", "agent_kill")),
    "ends_with_0": Defect(
        "an agent that receives SIGTERM exits with 0, as if its workers had succeeded", ends_with_0, _ANY,
        ("agent_term",)),
    "folder_left": Defect("a temporary folder is left behind", folder_left, _ANY, ("worker_kill",)),
    "process_left": Defect("a process is left behind", process_left, _ANY, ("worker_kill",)),
    "memory_grows": Defect(
        "the agent's memory grows with every round", memory_grows, _ANY, ("worker_kill",), (), 80),
    "sockets_left": Defect(
        "the agent leaks a socket per round", sockets_left, _ANY, ("worker_kill",), (), 80),
    "no_lease": Defect(
        "the key of a lost node stays in etcd, and its rank is never given to another node",
        no_lease, _ETCD, ("agent_kill",)),
    "leases_left": Defect("every change leaves a lease in etcd", leases_left, _ETCD, ("worker_kill",)),
    "member_not_replaced": Defect(
        "a served etcd member is not restarted when it has exited", member_not_replaced,
        ("etcd served",), ("member_kill",)),
}  # fmt: skip
"""All defects by name."""


def main() -> NoReturn:
    """Plant the defect that the first argument names, and run `elastic` with the rest."""
    if len(sys.argv) < 2 or sys.argv[1] not in DEFECTS:
        print(__doc__, *(f"  {name}: {defect.what}" for name, defect in DEFECTS.items()), sep="\n", file=sys.stderr)
        sys.exit(2)
    from elastic_core.cli import entry_point

    DEFECTS[sys.argv[1]].plant()
    entry_point(sys.argv[2:])


if __name__ == "__main__":
    main()
