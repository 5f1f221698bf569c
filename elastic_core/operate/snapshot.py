"""Snapshots of a job, with the nodes in the round and each node's standing. The functions have no side effects."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.config.values import NodeRange
from elastic_core.operate.observation import HeartbeatState
from elastic_core.rendezvous.model import Cause, State
from elastic_core.rendezvous.roster import alive, is_ready

if TYPE_CHECKING:
    from elastic_core.config import Settings
    from elastic_core.interfaces.health import StopStatus
    from elastic_core.interfaces.node import Member
    from elastic_core.operate.observation import JobObservation
    from elastic_core.rendezvous.model import Entry


class Phase(str, enum.Enum):
    """The job's phase. GATHERING means that no round is running and the next one has not formed yet."""

    GATHERING = "gathering"
    RUNNING = "running"
    CLOSED = "closed"


class NodeStanding(str, enum.Enum):
    """A node's standing in the job.

    RUNNING: a member of the running round. DONE: a member whose workers have succeeded. STOPPING: its round has ended,
    but it has not joined the next round yet. JOINED: ready for the next round. WAITING: waiting for the running round
    to end. SPARE: waiting because the round is full. DRAINING: was asked to leave. REFUSED: is not allowed to join.
    LATE: its heartbeat has timed out. GONE: was lost or has left. LEAVING: the job is over, but the node's agent is
    still running.
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
    """One node in a snapshot. `rank` is a member's group rank in the last round, or None for other nodes. `about`
    describes a member as of the time when the round formed, and any other node as of now. `note` is the reason why the
    node was refused. While the node's workers are stopping at a common step, `stop` lists which of them have saved."""

    rank: int | None
    key: str
    about: Member | Entry
    standing: NodeStanding
    beat: HeartbeatState
    note: str = ""
    stop: StopStatus | None = None


@dataclass(frozen=True)
class Snapshot:
    """A job at one moment.

    Args:
        settings: the job's settings, with its run id, backend and endpoint.
        job: the observation that the snapshot describes.
        state: the job's state, or an empty state before the first one was written.
        nodes: the allowed number of nodes; None before the job's first round.
        members: members of the last round, in rank order.
        others: nodes that are not members, oldest first.
        missing: names of former members that were lost and have not rejoined.
        max_restarts: how many restarts are allowed.
        store_members: a description of each member of the store, if the job hosts a store cluster.
    """

    settings: Settings
    job: JobObservation
    state: State
    phase: Phase
    nodes: NodeRange | None
    members: tuple[NodeView, ...]
    others: tuple[NodeView, ...]
    missing: tuple[str, ...]
    max_restarts: int
    store_members: tuple[str, ...] = ()

    def count(self, standing: NodeStanding) -> int:
        """Return the number of nodes with this standing."""
        return sum(view.standing is standing for view in (*self.members, *self.others))


def snapshot_of(job: JobObservation, settings: Settings, store_members: tuple[str, ...] = ()) -> Snapshot:
    """Return a snapshot of the observed job."""
    state = job.state or State()
    nodes = NodeRange(state.min_nodes, state.max_nodes) if 1 <= state.min_nodes <= state.max_nodes else None
    entries = {entry.key: entry for entry in job.entries}
    members = []
    for rank, seat in enumerate(state.seats):
        entry = entries.get(seat.key)
        beat = job.beat(seat.key) if entry is not None else HeartbeatState()
        standing, stop = _of_member(seat.key, state, entry, beat), None if entry is None else entry.stop
        members.append(NodeView(rank, seat.key, seat.member, standing, beat, stop=stop))
    others = []
    for entry in (entry for entry in job.entries if not state.seated(entry.key)):
        beat = job.beat(entry.key)
        standing = _of_other(entry, state, beat, nodes)
        others.append(NodeView(None, entry.key, entry, standing, beat, note=state.refusal(entry.key)))
    return Snapshot(
        settings=settings,
        job=job,
        state=state,
        phase=Phase.CLOSED if state.closed else Phase.RUNNING if state.open else Phase.GATHERING,
        nodes=nodes,
        members=tuple(members),
        others=tuple(others),
        missing=() if state.closed else _missing([*members, *others], job, state),
        max_restarts=max([state.max_restarts, *(entry.max_restarts for entry in job.entries if not state.round)]),
        store_members=store_members,
    )


def _of_member(key: str, state: State, entry: Entry | None, beat: HeartbeatState) -> NodeStanding:
    if entry is None or key in state.done:
        return NodeStanding.DONE if key in state.done else NodeStanding.GONE
    if state.closed:
        return NodeStanding.LEAVING
    if key in state.draining:
        return NodeStanding.DRAINING
    if beat.late:
        return NodeStanding.GONE if key in state.gone else NodeStanding.LATE
    if state.open:
        return NodeStanding.DONE if entry.done == state.round else NodeStanding.RUNNING
    return NodeStanding.JOINED if is_ready(entry, state) else NodeStanding.STOPPING


def _of_other(entry: Entry, state: State, beat: HeartbeatState, nodes: NodeRange | None) -> NodeStanding:
    if state.closed:
        return NodeStanding.LEAVING
    if state.refusal(entry.key):
        return NodeStanding.REFUSED
    if beat.late:
        return NodeStanding.LATE
    if entry.key in state.draining:
        return NodeStanding.DRAINING
    if not is_ready(entry, state):
        return NodeStanding.STOPPING
    if not state.open:
        return NodeStanding.JOINED
    return NodeStanding.SPARE if nodes is not None and len(state.busy) >= nodes.max else NodeStanding.WAITING


def _missing(views: list[NodeView], job: JobObservation, state: State) -> tuple[str, ...]:
    """Return the names of missing nodes. Names are compared, because a restarted node has a new key. The last round's
    end is also checked, because the store soon drops a lost node's entry."""
    present = {entry.node for entry in alive(job.roster, state)}
    absent = [view for view in views if view.standing in (NodeStanding.GONE, NodeStanding.LATE)]
    names = [view.about.node for view in absent if view.key not in state.draining]
    if state.end is not None and state.end.cause is Cause.LOST:
        names += state.end.by.split(", ")
    return tuple(dict.fromkeys(name for name in names if name not in present))
