"""The interpreter: what the agent talks to. Its decisions are made elsewhere (`decide`, `participant`), its dealings
with the store are the `Keeper`'s; here are the threads, the waiting, and the errors with their words."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock, later
from elastic_core.errors import (
    ElasticError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from elastic_core.interfaces.backend import RosterBackend
from elastic_core.interfaces.handler import (
    Outcome,
    RendezvousInfo,
    RendezvousStoreInfo,
    RoundHandler,
    Verdict,
)
from elastic_core.interfaces.node import Node, Round
from elastic_core.log import get_logger
from elastic_core.rendezvous.blame import is_certain
from elastic_core.rendezvous.codec import bounded
from elastic_core.rendezvous.entry import entry_of
from elastic_core.rendezvous.fence import Fence
from elastic_core.rendezvous.keeper import Keeper, Ticket, View
from elastic_core.rendezvous.participant import Standing, first_failures, missed, standing, verdict
from elastic_core.rendezvous.progress import progress_text
from elastic_core.rendezvous.round_stores import PrefixedStores
from elastic_core.rendezvous.seats import Members
from elastic_core.rendezvous.settings import (
    KEEP_ALIVE_INTERVAL,
    KEEP_ALIVE_MAX_ATTEMPT,
    RendezvousSettings,
    RendezvousTimeout,
    in_seconds,
)
from elastic_core.rendezvous.state import Cause, Report, State, closed, ended, failed, left, left_done
from elastic_core.rendezvous.state_entries import StateEntries
from elastic_core.rendezvous.threads import KeeperThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.backend import RendezvousBackend, RoundStores
    from elastic_core.interfaces.store import Store

_PATIENCE: Duration = 5.0  # seconds that closing and leaving wait for the store
_PATIENCE_OUTAGE: Duration = 1.0  # the same, when it has not answered before
_SEEING_NODES = 64  # so many nodes that wait may each look who is there whenever they are asked; more look more rarely
_LINGER: Duration = 5.0  # seconds that the host of the store waits for the others to have seen that the job is over


class DynamicRendezvousHandler(RoundHandler):
    """Rounds over a backend.

    Args:
        node: what this node tells the others.
        stores: gives every round its store.
        incarnation: tells this start of the agent from others of the same node.
    """

    def __init__(
        self,
        backend: RendezvousBackend,
        settings: RendezvousSettings,
        node: Node,
        stores: RoundStores,
        clock: Clock | None = None,
        incarnation: str | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._settings = settings
        self._stores = stores
        self._name = backend.name
        self._backend = backend if isinstance(backend, RosterBackend) else StateEntries(backend, self._clock)
        self._node = node
        self._entry = entry_of(node, f"{node.name}/{incarnation or secrets.token_hex(4)}")
        self._round = 0
        self._running = False
        self._done = False
        self._changed = threading.Condition()
        self._view = View()
        self._listeners: list[Callable[[], None]] = []
        self._keeper = Keeper(self._backend, settings, self._entry, self._clock, self._take_view)
        self._threads = KeeperThreads(self._keeper, self._backend, self._clock)
        self._fence = Fence(settings.window + self._backend.grace, settings.keep_alive_interval)
        self._shut = False
        self._left = False
        self._asked = 0

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Store,
        backend: RendezvousBackend,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: timedelta | float = KEEP_ALIVE_INTERVAL,
        keep_alive_max_attempt: int = KEEP_ALIVE_MAX_ATTEMPT,
        node: Node | None = None,
        stores: RoundStores | None = None,
    ) -> DynamicRendezvousHandler:
        """A handler for `backend`; the arguments and their order are torch's, up to `keep_alive_max_attempt`.

        Args:
            store: what the rounds' stores are made of: each sees only keys of its own.
            local_addr: the address that this node advertises; unset: its host name.
            node: what it tells the others; unset: a node of one worker, named by host and process.
            stores: another way to give every round its store.

        Raises:
            ValueError: a bound does not hold.
        """
        settings = RendezvousSettings(
            run_id,
            min_nodes,
            max_nodes,
            timeout or RendezvousTimeout(),
            in_seconds(keep_alive_interval),
            keep_alive_max_attempt,
        )
        address = local_addr or socket.gethostname()
        return cls(backend, settings, node or anonymous_node(), stores or PrefixedStores(store, run_id, address))

    # -- the handler that torch's users know

    def get_backend(self) -> str:
        return self._name

    def get_run_id(self) -> str:
        return self._settings.run_id

    @property
    def use_agent_store(self) -> bool:
        return self._stores.hosted_by_agent

    @property
    def settings(self) -> RendezvousSettings:
        """What it was made with."""
        return self._settings

    def next_rendezvous(self) -> RendezvousInfo:
        self._running = False
        self._done = False
        self._left = False
        self._threads.start()
        try:
            return self._joined(later(self._clock.now(), self._settings.timeout.join))
        except BaseException:
            self._step_back()
            raise

    def is_closed(self) -> bool:
        """As it stands in the store now. Raises RendezvousConnectionError after some seconds without an answer."""
        state = self._view.state
        if state is None or state.closed is None:
            self._threads.start()
            self._keeper.state_changed()
            self._carried_out(self._keeper.amend(lambda state: state), _PATIENCE)
            state = self._view.state
        return state is not None and state.closed is not None

    def set_closed(self) -> None:
        """Raises RendezvousConnectionError after some seconds without an answer; it is still closed once there is
        one."""
        self._close("it was closed on request", succeeded=False)

    def num_nodes_waiting(self) -> int:
        """As seen at the last beat by the node that leads; the others look now. Raises RendezvousConnectionError."""
        self._threads.start()
        if not self._keeper.leading:
            self._carried_out(self._keeper.look(), _PATIENCE)
        return self._view.waiting

    def shutdown(self) -> bool:
        with self._changed:
            if self._shut:
                return True
            self._shut = True
            self._changed.notify_all()
        told = True
        if self._threads.started and self._view.state is not None:
            self._go(f"{self._node.name} was shut down")
            told = self._told(self._keeper.withdraw(), self._patience())
            self._linger()
        ended = self._threads.stop()
        self._stores.release()
        self._backend.close()
        return told and ended

    # -- following a round

    def subscribe(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def verdict(self) -> Verdict | None:
        state = self._view.state
        if not self._running or state is None:
            return None
        found = verdict(state, self._entry.key, self._round)
        if found is not None:
            return found
        since, now = self._keeper.out_of_reach_since(), self._clock.now()
        if not self._fence.passed(since, now) or since is None:
            return None
        outage = self._view.outage
        answer = f"the last answer was: {outage}" if outage else "it does not answer at all"
        return Verdict(
            Outcome.FENCED,
            f"the rendezvous store was out of reach for {now - since:.1f} s; after {self._settings.window:g} s without "
            f"a beat the others hold this node to be gone; {answer}",
        )

    def ask_again(self) -> Instant | None:
        if not self._running:
            return None
        fenced = self._fence.ask_again(self._keeper.out_of_reach_since(), self._clock.now())
        return min(fenced, self._keeper.notice_silence())

    def report_failure(self, failures: Mapping[int, ProcessFailure]) -> None:
        told = tuple(bounded(failure) for failure in failures.values())
        report = Report(self._entry.key, self._node.name, told, is_certain(failures))
        number, limit = self._round, self._node.max_restarts
        self._keeper.amend(lambda state: failed(state, number, report, limit))
        self._threads.wake()

    def report_success(self) -> None:
        self._done = True
        if not self._left:
            self._want(after=self._entry.after, done=self._round)

    def leave(self, reason: str, timeout: Duration) -> bool:
        if not self._threads.started:
            return True
        with self._changed:
            self._go(reason)
            ticket = self._keeper.withdraw()
            self._changed.notify_all()
        return self._told(ticket, timeout)

    def _go(self, reason: str) -> None:
        """Tell the others, once, that this node takes part no longer; a join in another thread ends."""
        if self._left:
            return
        self._left = True
        key, number, done = self._entry.key, self._round, self._done
        self._keeper.amend(lambda state: left_done(state, key, number) if done else left(state, key, reason))

    def _patience(self) -> Duration:
        """How long going waits for the store."""
        return _PATIENCE if self._view.outage is None else _PATIENCE_OUTAGE

    def close(self, reason: str, succeeded: bool) -> None:
        """Close the rendezvous, and say why. Blocks until it is done. Raises RendezvousConnectionError."""
        self._close(reason, succeeded)

    def progress(self) -> str:
        view = self._view
        if view.outage is not None:
            return str(view.outage)
        if not self._keeper.leading and self._asked % (1 + self._settings.max_nodes // _SEEING_NODES) == 0:
            self._keeper.look()
            self._threads.wake()
        self._asked += 1
        return self._seen_so_far()

    def _seen_so_far(self) -> str:
        roster, _ = self._keeper.seen
        return progress_text(self._view.state, self._view.gathering, roster, self._settings, self._entry.key)

    # -- waiting

    def _joined(self, deadline: Instant) -> RendezvousInfo:
        was_closed = self._connected(deadline).closed is not None and self._round == 0
        self._give_up_round()
        where = self._stores.reserve()
        self._want(after=self._round, done=0, where=where)
        state = self._formed(deadline, was_closed)
        self._round = state.round  # from here on: what fails below wants a newer one
        info = self._info(state)
        if self._shut or self._left:  # while the store was made
            self._stores.release()
            self._check_joining()
        self._running = True
        return info

    def _give_up_round(self) -> None:
        """Who wants a new round while its last one runs ends that for all, as users of torch's handlers expect: they
        report nothing. Does nothing after a report, or when the round is over."""
        key, name, number = self._entry.key, self._node.name, self._round

        def over(state: State) -> State:
            running = state.open and state.round == number and state.seated(key)
            return ended(state, Cause.LEFT, name, f"{name} wants a new round") if running else state

        if number:
            self._keeper.amend(over)

    def _step_back(self) -> None:
        """This node does not come to the round that it wanted."""
        self._keeper.withdraw()
        self._threads.wake()

    def _take_view(self, view: View) -> None:
        with self._changed:
            before, self._view = self._view, view
            if (view.state, view.outage, view.fault) == (before.state, before.outage, before.fault):
                return
            self._changed.notify_all()
        for listener in self._listeners:
            try:
                listener()
            except Exception as error:  # noqa: BLE001 - the beats go on, whatever a listener does
                reason = f"a listener raised {type(error).__name__}: {error}"
                get_logger().warning("rendezvous fault", reason=reason, exc_info=error)

    def _wait(self, deadline: Instant | None) -> bool:
        """Until a view comes, or the deadline. False when it has passed. The condition is held."""
        left_over = None if deadline is None else deadline - self._clock.now()
        if left_over is not None and left_over <= 0:
            return False
        self._changed.wait(60.0 if left_over is None else min(left_over, 60.0))
        return True

    def _connected(self, deadline: Instant) -> State:
        """The state as first read."""
        with self._changed:
            while True:
                self._check_joining()
                if self._view.state is not None:
                    return self._view.state
                if not self._wait(deadline):
                    raise self._no_answer(self._settings.timeout.join)

    def _no_answer(self, seconds: Duration) -> RendezvousConnectionError:
        view = self._view
        told = f": {type(view.fault).__name__}: {view.fault}" if view.fault else ""
        return view.outage or RendezvousConnectionError(
            f"expected the rendezvous store to answer within {seconds:g} s, found that it did not{told}"
        )

    def _check_joining(self) -> None:
        self._check_fault()
        if self._left:
            raise RendezvousGracefulExitError("this node left the rendezvous while it was joining")

    def _check_fault(self) -> None:
        """Raise what no waiting can cure."""
        if self._shut:
            raise RendezvousGracefulExitError("the rendezvous was shut down on this node")
        fault = self._view.fault
        if isinstance(fault, ElasticError):
            raise fault

    def _formed(self, deadline: Instant, was_closed: bool) -> State:
        """The state in which this node is a member of the next round. A node that waits while another round runs does
        so without limit; the deadline is for gathering."""
        with self._changed:
            while True:
                self._check_joining()
                state = self._view.state or State()
                over = missed(state, self._entry.key, self._entry.after)
                if over is not None:
                    self._want(after=over, done=0)
                stands = standing(state, self._entry.key, self._entry.after, self._settings.max_nodes)
                if stands is Standing.MEMBER:
                    return state
                if stands in (Standing.CLOSED, Standing.DRAINED, Standing.REFUSED):
                    self._give_up(state, stands, was_closed)
                if stands in (Standing.SPARE, Standing.WAITING) and self._view.outage is None:
                    self._wait(None)
                    deadline = later(self._clock.now(), self._settings.timeout.join)
                elif not self._wait(deadline):
                    self._time_out()

    def _give_up(self, state: State, stands: Standing, was_closed: bool) -> None:
        if stands is Standing.DRAINED:
            raise RendezvousGracefulExitError("somebody asked this node to leave (drain)")
        if stands is Standing.REFUSED:
            raise RendezvousStateError(
                f"this node may not take part: {state.refusal(self._entry.key)}; give every agent a name of its own "
                "with --node-id (with the backend static, a --node-rank of its own)"
            )
        assert state.closed is not None
        told = f"the job {self._settings.run_id!r} was closed by {state.closed.by}: {state.closed.reason}"
        if state.closed.succeeded and not was_closed:
            raise RendezvousGracefulExitError(f"{told}; this node was not needed")
        advice = "; for a new job choose another --rdzv-id" if was_closed else ""
        error = RendezvousClosedError(told + advice)
        error.failures = {} if state.closed.succeeded else first_failures(state)
        raise error

    def _time_out(self) -> None:
        if self._view.outage is not None or self._view.fault is not None:
            raise self._no_answer(self._settings.timeout.join)
        seen = self._seen_so_far()
        raise RendezvousTimeoutError(
            f"expected {_bounds(self._settings)} within {self._settings.timeout.join:g} s (join_timeout), found: "
            f"{seen or 'too few'}; start the missing ones, or allow more time with --rdzv-conf=join_timeout=SECONDS"
        )

    def _info(self, state: State) -> RendezvousInfo:
        rank = state.rank(self._entry.key)
        assert rank is not None
        host = state.seats[0]
        where = RendezvousStoreInfo(host.member.address, host.port)
        store = self._stores.open(state.round, where, rank == 0)
        members = Members(state.seats)
        agreed = Round(state.round, members, state.restarts, state.reason)
        return RendezvousInfo(store, rank, len(state.seats), where, agreed)

    # -- telling

    def _want(self, after: int, done: int, where: RendezvousStoreInfo | None = None) -> None:
        entry = replace(self._entry, after=after, done=done)
        with self._changed:
            if self._shut or self._left:
                return  # whoever waits finds out why; no entry may come after the withdrawal
            self._entry = replace(entry, address=where.master_addr, port=where.master_port) if where else entry
            self._keeper.want(self._entry)
        self._threads.wake()

    def _close(self, reason: str, succeeded: bool) -> None:
        self._threads.start()
        name = self._node.name
        self._carried_out(self._keeper.amend(lambda state: closed(state, name, reason, succeeded)), _PATIENCE)

    def _carried_out(self, ticket: Ticket, timeout: Duration) -> None:
        """Wait for the keeper to have done it. Raises what kept it from that."""
        told = self._told(ticket, timeout)
        if ticket.fault is not None:
            raise ticket.fault
        if not told:
            self._check_fault()
            raise self._no_answer(timeout)

    def _told(self, ticket: Ticket, timeout: Duration) -> bool:
        """The same; whether it was done."""
        self._threads.wake()
        return not self._threads.stopped and ticket.done.wait(timeout) and ticket.fault is None

    def _linger(self) -> None:
        """The host of the store leaves last, so that everybody learns how the job ended: bounded, for it can be that
        somebody never comes to ask."""
        state = self._view.state
        if not self._backend.hosts_store or state is None or state.closed is None or self._view.outage is not None:
            return
        until = later(self._clock.now(), _LINGER)
        while self._clock.now() < until and self._others_are_there(until):
            self._threads.wait_for_roster(until)

    def _others_are_there(self, until: Instant) -> bool:
        if not self._told(self._keeper.look(), max(until - self._clock.now(), 0.0)):
            return False
        roster, _ = self._keeper.seen
        return any(not seen.late for seen in roster)


def anonymous_node(host: str = "") -> Node:
    """A node that nobody has described: named by its host and process."""
    host = host or socket.gethostname()
    return Node(f"{host}:{os.getpid()}.{secrets.token_hex(6)}", host)


def _bounds(settings: RendezvousSettings) -> str:
    if settings.min_nodes == settings.max_nodes:
        return f"{settings.min_nodes} nodes to join"
    return f"{settings.min_nodes} to {settings.max_nodes} nodes to join"
