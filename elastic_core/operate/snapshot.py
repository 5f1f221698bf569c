"""A job at one moment, for people and programs: which nodes are in the round, and how each node stands. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.config.values import NodeRange
from elastic_core.operate.observation import Beat
from elastic_core.rendezvous.model import Cause, State, first_failures
from elastic_core.rendezvous.roster import alive, is_ready

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.config import Settings
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.node import Member
    from elastic_core.operate.observation import JobObservation
    from elastic_core.rendezvous.model import Closed, End, Entry


class Phase(str, enum.Enum):
    """What the job does. GATHERING: no round runs, and the next one has not formed yet."""

    GATHERING = "gathering"
    RUNNING = "running"
    CLOSED = "closed"


class Standing(str, enum.Enum):
    """How a node stands.

    RUNNING: a member of the round that runs. DONE: a member whose workers have succeeded. STOPPING: its round is over,
    and it does not wait for the next one yet. JOINED: it is ready for the next round. WAITING: it waits while a round
    runs. SPARE: it waits, and the round is full. DRAINING: it was asked to leave. REFUSED: it may not take part. LATE:
    its beat is late, and it is taken for gone. GONE: it was lost or has left. LEAVING: the job is over, and the node's
    agent is still there.
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
    """One node. `rank`: its group rank in the last round; None if it is not a member. `note`: why it is refused."""

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
    """A job at one moment.

    Args:
        run_id, backend, endpoint: the job and where it meets.
        round: the number of the last round that formed; 0 for none.
        formed_because: why it formed at that moment.
        nodes: how many nodes the job may have; None before its first round.
        members: of the last round, in rank order.
        others: nodes that are not members, oldest first.
        missing: names of nodes that were there, have gone, and are not back.
        restarts, max_restarts: failures that were forgiven, and how many will be.
        last_end: why the last round that ended did.
        failures: of the workers in that round, by global rank, with the failure that counts as the cause first.
        unreadable: keys of entries that this version cannot read.
        not_signed: in how many places something stands that is not signed with the job's secret.
        observed: seconds from the first look to the last.
        store_members: what is to be said of each member of the store, if that is a cluster of the job's own.
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
    not_signed: int
    observed: float
    store_members: tuple[str, ...] = ()

    def standing(self, *standings: Standing) -> tuple[NodeView, ...]:
        """The nodes with one of these standings, members first."""
        return tuple(view for view in (*self.members, *self.others) if view.standing in standings)

    @property
    def joined(self) -> int:
        """How many nodes are ready for the next round."""
        return len(self.standing(Standing.JOINED))


def snapshot_of(job: JobObservation, settings: Settings, store_members: tuple[str, ...] = ()) -> Snapshot:
    """The job as it was observed."""
    state = job.state or State()
    nodes = NodeRange(state.min_nodes, state.max_nodes) if 1 <= state.min_nodes <= state.max_nodes else None
    entries = {entry.key: entry for entry in job.entries}
    members = []
    for rank, seat in enumerate(state.seats):
        entry = entries.get(seat.key)
        beat = job.beat(seat.key) if entry is not None else Beat()
        members.append(_view(rank, seat.key, seat.member, _of_member(seat.key, state, entry, beat), beat))
    others = []
    for entry in (entry for entry in job.entries if not state.seated(entry.key)):
        beat = job.beat(entry.key)
        note = state.refusal(entry.key)
        others.append(_view(None, entry.key, entry, _of_other(entry, state, beat, nodes), beat, note))
    return Snapshot(
        run_id=settings.rdzv_id or "",
        backend=settings.rdzv_backend,
        endpoint=settings.rdzv_endpoint,
        phase=Phase.CLOSED if state.closed else Phase.RUNNING if state.open else Phase.GATHERING,
        round=state.round.number,
        formed_because=state.reason,
        nodes=nodes,
        members=tuple(members),
        others=tuple(others),
        missing=() if state.closed else _missing([*members, *others], job, state),
        restarts=state.restarts,
        max_restarts=max([state.max_restarts, *(entry.max_restarts for entry in job.entries if not state.round)]),
        last_end=state.end,
        failures=first_failures(state),
        closed=state.closed,
        unreadable=job.unreadable,
        not_signed=job.not_signed,
        observed=job.now - job.since,
        store_members=store_members,
    )


def _view(rank: int | None, key: str, node: Member | Entry, standing: Standing, beat: Beat, note: str = "") -> NodeView:
    return NodeView(
        rank, node.node, key, node.host, node.address, node.role, node.local_world_size, standing, beat, note
    )


def _of_member(key: str, state: State, entry: Entry | None, beat: Beat) -> Standing:
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


def _of_other(entry: Entry, state: State, beat: Beat, nodes: NodeRange | None) -> Standing:
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


def _missing(views: list[NodeView], job: JobObservation, state: State) -> tuple[str, ...]:
    """A node that was started again has another key and the same name. A node that was asked to leave is not missing.
    The store drops the entry of a lost node after some seconds; then only the end of the last round names it."""
    present = {entry.node for entry in alive(job.roster, state)}
    absent = [view for view in views if view.standing in (Standing.GONE, Standing.LATE)]
    names = [view.node for view in absent if view.key not in state.draining]
    if state.end is not None and state.end.cause is Cause.LOST:
        names += state.end.by.split(", ")
    return tuple(dict.fromkeys(name for name in names if name not in present))
