"""A job at one moment, for people and programs: who is in the round and how each of them stands. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.config.values import NodeRange
from elastic_core.operate.sight import Beat
from elastic_core.rendezvous.model import Cause, State, first_failures
from elastic_core.rendezvous.roster import alive, is_ready

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.errors import ProcessFailure
    from elastic_core.operate.sight import Sight
    from elastic_core.operate.target import Target
    from elastic_core.rendezvous.model import Closed, End, Entry
    from elastic_core.rendezvous.seats import Seat


class Phase(str, enum.Enum):
    """What the job does. GATHERING: no round runs, the next one has not formed yet."""

    GATHERING = "gathering"
    RUNNING = "running"
    CLOSED = "closed"


class Standing(str, enum.Enum):
    """How a node stands.

    RUNNING: a member of the round that runs. DONE: a member whose workers have succeeded. STOPPING: its round is over,
    it has not come back yet. JOINED: it is ready for the next round. WAITING: it waits while a round runs. SPARE: so it
    does, and the round is full. DRAINING: it was asked to leave. REFUSED: it may not take part. LATE: its beat is late,
    it is held to be gone. GONE: it was lost or has left. LEAVING: the job is over, and it is still there.
    """

    RUNNING = "running"
    DONE = "done"
    STOPPING = "stopping"
    JOINED = "joined"
    WAITING = "waiting"
    SPARE = "spare"
    DRAINING = "draining"
    REFUSED = "refused"
    LATE = "late"
    GONE = "gone"
    LEAVING = "leaving"


@dataclass(frozen=True)
class NodeView:
    """One node. `rank`: its group rank in the last round, None if it is not of it. `note`: more about its standing."""

    rank: int | None
    node: str
    key: str
    host: str
    address: str
    role: str
    local_world_size: int
    standing: Standing
    beat: Beat
    note: str = ""


@dataclass(frozen=True)
class Snapshot:
    """See above.

    Args:
        run_id, backend, endpoint: the job and where it meets.
        round: the number of the last round that formed; 0 for none.
        formed_because: why it formed just then.
        nodes: how many nodes the job may have; None before its first round.
        members: of the last round, in rank order.
        others: nodes that are not of it, oldest first.
        missing: names of nodes that were there, are not any more, and are not back.
        restarts, max_restarts: failures that were forgiven, and how many will be.
        last_end: why the last round that ended did.
        failures: of the workers, in that round, by global rank; the first one that is held to be the cause.
        unreadable: keys of entries that this version cannot read.
        observed: seconds that the observer has looked.
    """

    run_id: str
    backend: str
    endpoint: str
    phase: Phase
    round: int
    formed_because: str
    nodes: NodeRange | None
    members: tuple[NodeView, ...]
    others: tuple[NodeView, ...]
    missing: tuple[str, ...]
    restarts: int
    max_restarts: int
    last_end: End | None
    failures: Mapping[int, ProcessFailure]
    closed: Closed | None
    unreadable: tuple[str, ...]
    observed: float

    def standing(self, *standings: Standing) -> tuple[NodeView, ...]:
        """The nodes that stand like this, members first."""
        return tuple(view for view in (*self.members, *self.others) if view.standing in standings)

    @property
    def joined(self) -> int:
        """How many nodes are ready for the next round."""
        return len(self.standing(Standing.JOINED))


def snapshot_of(sight: Sight, target: Target) -> Snapshot:
    """The job as the observer has seen it."""
    state = sight.state or State()
    nodes = _bounds(state)
    entries = {entry.key: entry for entry in sight.entries}
    members = tuple(_member(rank, seat, state, entries.get(seat.key), sight) for rank, seat in enumerate(state.seats))
    others = tuple(_other(entry, state, sight, nodes) for entry in sight.entries if not state.seated(entry.key))
    return Snapshot(
        run_id=target.run_id,
        backend=target.backend,
        endpoint=target.endpoint,
        phase=Phase.CLOSED if state.closed else Phase.RUNNING if state.open else Phase.GATHERING,
        round=state.round,
        formed_because=state.reason,
        nodes=nodes,
        members=members,
        others=others,
        missing=() if state.closed else _missing((*members, *others), sight, state),
        restarts=state.restarts,
        max_restarts=max([state.max_restarts, *(entry.max_restarts for entry in sight.entries if not state.round)]),
        last_end=state.end,
        failures=first_failures(state),
        closed=state.closed,
        unreadable=sight.unreadable,
        observed=sight.now - sight.since,
    )


def _bounds(state: State) -> NodeRange | None:
    return NodeRange(state.min_nodes, state.max_nodes) if 1 <= state.min_nodes <= state.max_nodes else None


def is_empty(sight: Sight) -> bool:
    """Whether no job has met here."""
    return sight.state is None and not sight.entries and not sight.unreadable


def _member(rank: int, seat: Seat, state: State, entry: Entry | None, sight: Sight) -> NodeView:
    member = seat.member
    beat = sight.beat(seat.key) if entry is not None else Beat()
    return NodeView(
        rank,
        member.node,
        seat.key,
        member.host,
        member.address,
        member.role,
        member.local_world_size,
        _standing_of_member(seat.key, state, entry, beat),
        beat,
    )


def _standing_of_member(key: str, state: State, entry: Entry | None, beat: Beat) -> Standing:
    if entry is None or key in state.done:
        return Standing.DONE if key in state.done else Standing.GONE
    if state.closed:
        return Standing.LEAVING
    if key in state.draining:
        return Standing.DRAINING
    if beat.late:
        return Standing.GONE if key in state.gone else Standing.LATE
    if state.open:
        return Standing.DONE if entry.done == state.round else Standing.RUNNING
    return Standing.JOINED if is_ready(entry, state) else Standing.STOPPING


def _other(entry: Entry, state: State, sight: Sight, nodes: NodeRange | None) -> NodeView:
    beat = sight.beat(entry.key)
    return NodeView(
        None,
        entry.node,
        entry.key,
        entry.host,
        entry.address,
        entry.role,
        entry.local_world_size,
        _standing_of_other(entry, state, beat, nodes),
        beat,
        state.refusal(entry.key),
    )


def _standing_of_other(entry: Entry, state: State, beat: Beat, nodes: NodeRange | None) -> Standing:
    if state.closed:
        return Standing.LEAVING
    if state.refusal(entry.key):
        return Standing.REFUSED
    if beat.late:
        return Standing.LATE
    if entry.key in state.draining:
        return Standing.DRAINING
    if not is_ready(entry, state):
        return Standing.STOPPING
    if not state.open:
        return Standing.JOINED
    return Standing.SPARE if nodes is not None and len(state.busy) >= nodes.max else Standing.WAITING


def _missing(views: tuple[NodeView, ...], sight: Sight, state: State) -> tuple[str, ...]:
    """A node that was started anew has another key and the same name. A node that was asked to leave is not missed. The
    entry of a lost node is dropped after some seconds; then only the end of the last round still tells of it."""
    present = {entry.node for entry in alive(sight.roster, state)}
    absent = [view for view in views if view.standing in (Standing.GONE, Standing.LATE)]
    names = [view.node for view in absent if view.key not in state.draining]
    if state.end is not None and state.end.cause is Cause.LOST:
        names += state.end.by.split(", ")
    return tuple(dict.fromkeys(name for name in names if name not in present))
