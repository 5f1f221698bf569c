"""The agent's link to the other nodes. This module also lets a node join a round, learn the round's members, and assign
ranks to its workers.

There are two kinds of handlers. Some handlers push verdicts and count failures. Plain handlers only form rounds, so the
link polls them for waiting nodes, the agent's own budget counts the failures, and there is no exit barrier. Their
methods may block, so each call runs in a separate thread.

Handlers written for torchrun return a rank and a size, but not the other members. Each node therefore introduces itself
in the round's store, under its rank, and reads the other nodes' introductions. Introductions are JSON, never pickle,
because a program that can write to the store must not be able to run code here."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.agent.interface import Worker
from elastic_core.clock import later
from elastic_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from elastic_core.interfaces.handler import Outcome, RoundHandler, Verdict
from elastic_core.interfaces.node import Member, Round
from elastic_core.log import get_logger, tolerating
from elastic_core.support.bounded import BackgroundCall, CallTimeout
from elastic_core.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.agent.interface import WorkerSpec
    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.backend import Store
    from elastic_core.interfaces.handler import RendezvousHandler, RendezvousInfo

LEAVE_PATIENCE: Duration = 2.0  # how long notifying the other nodes may delay the workers' stop or the job's end
LONGEST_INTERVAL: Duration = 1.0  # between two polls
SHORTEST_INTERVAL: Duration = 0.001  # an interval of 0 must not make the agent spin
_OVERDUE: Duration = 0.05  # seconds until a handler is asked again if the time that it gave has already passed
_KEY = "elastic/member/{rank}"
_LONGEST = 4096  # bytes
_MOST = 2**31
T = TypeVar("T")


class Link:
    """One agent's link to the other nodes. Only the agent's thread may use it. It may call `join` and `leave` in other
    threads, and handle signals while it waits for them.

    While workers run, a plain handler is polled for waiting nodes: first after `interval` seconds, then less and less
    often, down to once a second.

    The handler's errors are logged and tolerated for up to its `outage_patience`, because healthy workers do not need
    the handler.

    Args:
        listener: called from any thread when there may be a verdict.

    Attributes:
        rounds: the handler if it counts all nodes' failures and reports when the other nodes have succeeded, otherwise
            None.
        has_left: whether `leave` has been called.
    """

    def __init__(
        self, handler: RendezvousHandler, clock: Clock, interval: Duration, listener: Callable[[], None]
    ) -> None:
        self._handler = handler
        self._clock = clock
        self._listener = listener
        self._first_interval = self._interval = max(interval, SHORTEST_INTERVAL)
        self._failing_since: Instant | None = None
        self._due: Instant | None = None  # when to poll next, if polling is on
        self._poll: BackgroundCall[int] | None = None
        self.rounds = handler if isinstance(handler, RoundHandler) else None
        self.has_left = False
        if self.rounds:
            self.rounds.subscribe(listener)

    def joined(self) -> None:
        """Record that a new round has formed, and start polling a plain handler."""
        self._interval = self._first_interval
        self._failing_since = self._poll = None
        self._due = later(self._clock.now(), self._interval) if self._handler.polled else None

    def join(self, own: Round) -> tuple[RendezvousInfo, Round]:
        """Wait for the next round, and return it with its description. If the handler was written for torchrun and does
        not return one, the nodes introduce themselves. A poll must end first, because such a handler may not be
        thread-safe. Raises the handler's errors. This method may run in another thread."""
        if self._poll is not None:
            self._poll.wait(threading.TIMEOUT_MAX)
            if self.has_left:
                raise RendezvousClosedError("this node has left")
        info = self._handler.next_rendezvous()
        formed: Round | None = getattr(info, "formed", None)
        if formed is None:
            formed = exchange_introductions(info.store, info.rank, info.world_size, own)
            if info.world_size == 1:
                where = info.bootstrap_store_info
                formed = replace(formed, members=(own.members[0]._replace(address=where.master_addr if where else ""),))
        return info, formed

    def verdict(self, running: bool) -> Verdict | None:
        """Return the verdict on the round, or None if the round is not over. Raises the handler's error if the handler
        keeps failing for too long.

        Args:
            running: whether this node's workers are running.
        """
        if self.rounds:
            return self.rounds.verdict()
        if not running or self._due is None or (self._poll is None and self._clock.now() < self._due):
            return None
        waiting = self._waiting()
        if waiting is None:
            return None
        self._interval = min(2 * self._interval, max(LONGEST_INTERVAL, self._first_interval))
        self._due = later(self._clock.now(), self._interval)
        return Verdict(Outcome.RESTART, f"{counted(waiting, 'more node')} can join") if waiting > 0 else None

    def ask_again(self) -> Instant | None:
        """Return when to ask for the verdict again if no event arrives, or None if waiting for events is enough."""
        if self.rounds is None:
            return self._due if self._poll is None else None
        wanted = self.rounds.ask_again()
        return None if wanted is None else max(wanted, later(self._clock.now(), _OVERDUE))

    def stop_by(self) -> Instant | None:
        """Return when workers that are being stopped must have ended, even if their grace period is longer, or None if
        there is no such limit. Never raises, so that a stop that has begun continues."""
        with tolerating("plugin failed", "stop_by", part="rendezvous handler"):
            return self.rounds.stop_by() if self.rounds else None
        return None

    def leave(self, reason: str) -> None:
        """Notify the other nodes that this node is leaving, if the handler can. Only the first call has an effect.
        Blocks for at most LEAVE_PATIENCE, and never raises."""
        if self.has_left:
            return
        self.has_left = True
        if self.rounds is None:
            return
        try:
            verdict = self.rounds.verdict()
            if verdict and verdict.outcome in (Outcome.CLOSED, Outcome.FENCED):
                return  # no other node would read the notification
            notified = self.rounds.leave(reason, LEAVE_PATIENCE)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the node leaves, even if it cannot notify other nodes
            get_logger().warning("round left", reason=reason, notified=False, error=str(error))
            return
        get_logger().info("round left", reason=reason, notified=notified)

    def close(self) -> str:
        """Close a plain handler's rendezvous at the end of the job. Blocks for at most LEAVE_PATIENCE. Returns a clause
        to append to the reason for the end if closing fails, otherwise an empty string."""
        if self.rounds is not None:
            return ""
        call = _in_thread(self._close_handler, "rendezvous-close")
        try:
            if call is None:
                self._close_handler()
            else:
                call.result(LEAVE_PATIENCE)
        except CallTimeout:
            return f"; the other nodes could not be notified within {LEAVE_PATIENCE:g} s"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a third party's handler may raise any error
            return f"; the other nodes could not be notified: {error}"
        return ""

    def _close_handler(self) -> None:
        if self._poll is not None:
            self._poll.wait(LEAVE_PATIENCE)
        self._handler.set_closed()

    def _waiting(self) -> int | None:
        """Return the number of waiting nodes, None until the handler has answered, or 0 if it cannot be asked."""
        if self._poll is None:
            self._poll = _in_thread(self._handler.num_nodes_waiting, "rendezvous-poll", self._listener)
            if self._poll is None:
                return 0
        try:
            waiting = self._poll.result()
        except CallTimeout:
            return None
        except Exception as error:  # noqa: BLE001 - a third party's handler may raise any error
            self._poll = None
            self._tolerate(error)
            return 0
        self._poll = None
        if self._failing_since is not None:
            seconds = self._clock.now() - self._failing_since
            get_logger().info("rendezvous in reach again", seconds=round(seconds, 3))
            self._failing_since = None
        return waiting

    def _tolerate(self, error: Exception) -> None:
        """Raise `error` if the handler has been failing for too long."""
        now, patience = self._clock.now(), self._handler.outage_patience
        if self._failing_since is None:
            self._failing_since = now
            get_logger().warning("rendezvous out of reach", reason=str(error), tolerated_seconds=patience)
        elif patience is not None and now - self._failing_since >= patience:
            raise error


def _in_thread(
    action: Callable[[], T], name: str, then: Callable[[], object] = lambda: None
) -> BackgroundCall[T] | None:
    """Start a call in a new thread. Returns None if no thread can be started."""
    try:
        return BackgroundCall(action, name, then)
    except RuntimeError:
        return None


def exchange_introductions(store: Store, rank: int, world_size: int, own: Round) -> Round:
    """Return the round as all its members see it, with the highest restart count and round number that any member
    knows. `own` is the round as this node proposes it, with itself as the only member.

    Blocks until all introductions have arrived, or the store's own timeout for a key has passed. A round with only one
    node does not use the store.

    Raises:
        RendezvousTimeoutError: a member did not introduce itself in time.
        RendezvousConnectionError: the store cannot be reached.
        RendezvousStateError: a member's introduction cannot be read.
    """
    if world_size > 1:
        node, host, _, role, workers = own.members[0]
        store.set(_KEY.format(rank=rank), json.dumps((role, workers, own.restart_count, own.number, node, host)))
    proposed = [own if other == rank else _read(store, other) for other in range(world_size)]
    members = tuple(it.members[0] for it in proposed)
    return Round(max(it.number for it in proposed), members, max(it.restart_count for it in proposed))


def _read(store: Store, rank: int) -> Round:
    try:
        raw = store.get(_KEY.format(rank=rank))
    except TimeoutError as error:
        raise RendezvousTimeoutError(f"the node with rank {rank} did not introduce itself in time: {error}") from error
    except Exception as error:
        message = f"the introduction of the node with rank {rank} cannot be read from the round's store: {error}"
        raise RendezvousConnectionError(message) from error
    try:
        return _checked(*json.loads(raw if len(raw) <= _LONGEST else b""))
    except (ValueError, TypeError, RecursionError) as error:
        message = f"expected the introduction of the node with rank {rank}, found {raw[:100]!r}"
        raise RendezvousStateError(f"{message}; run the same version on all nodes") from error


def _checked(role: Any, workers: Any, restarts: Any, number: Any, node: Any, host: Any) -> Round:
    counts = (workers, restarts, number)
    whole = all(type(count) is int and 0 <= count < _MOST for count in counts)
    if not whole or not all(isinstance(text, str) for text in (role, node, host)):
        raise ValueError(counts)
    return Round(number, (Member(node, host, "", role, workers),), restarts)


def check_place(members: Sequence[Member], group_rank: int, group_world_size: int, spec: WorkerSpec) -> None:
    """Raise RendezvousStateError if the round has the wrong size, or if another node has this node's rank."""
    own = members[group_rank] if 0 <= group_rank < len(members) == group_world_size else None
    if own is None or (own.role, own.local_world_size) != (spec.role, spec.local_world_size):
        found = ", ".join(f"{member.local_world_size} of {member.role!r}" for member in members) or "none"
        raise RendezvousStateError(
            f"expected a round of {group_world_size} node(s) in which rank {group_rank} has "
            f"{spec.local_world_size} worker(s) of role {spec.role!r}; found nodes with {found}; "
            "check that no two nodes have the same id"
        )


def ranked_workers(members: Sequence[Member], group_rank: int) -> list[Worker]:
    """Return the workers of the member with rank `group_rank`, ordered by local rank.

    Global ranks number the workers of all members, in the order of the members' group ranks. Role ranks number only the
    workers of members with the same role. Every node can therefore compute all ranks."""
    own = members[group_rank]
    first = first_in_role = world_size = role_world_size = 0
    # Access each member only once, because in a large round every access to a member builds a new object.
    for rank, member in enumerate(members):
        if rank == group_rank:
            first, first_in_role = world_size, role_world_size
        world_size += member.local_world_size
        role_world_size += member.local_world_size if member.role == own.role else 0
    return [
        Worker(local, first + local, first_in_role + local, world_size, role_world_size)
        for local in range(own.local_world_size)
    ]
