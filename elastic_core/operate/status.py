"""`elastic status`: a snapshot of a job with each node's standing, as text and as JSON values."""

from __future__ import annotations

import enum
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.errors import ChildFailedError
from elastic_core.operate.observation import HeartbeatState, observed
from elastic_core.parsing import NodeRange
from elastic_core.rendezvous.model import Cause, State, first_failures
from elastic_core.rendezvous.roster import alive, is_ready
from elastic_core.text import counted, in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elastic_core.clock import Clock, Duration
    from elastic_core.compose.plan import Plan
    from elastic_core.config import Settings
    from elastic_core.interfaces.health import StopStatus
    from elastic_core.interfaces.node import Member
    from elastic_core.operate.observation import JobObservation
    from elastic_core.rendezvous.model import End, Entry


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


VERSION = 1
"""The schema version of `as_dict`, which is incremented when a field is removed or changes its meaning."""

_HEAD = ("RANK", "NODE", "HOST", "ADDRESS", "ROLE", "WORKERS", "LAST BEAT", "STANDING")


def status(
    plan: Plan,
    timeout: Duration,
    clock: Clock | None = None,
    pause: Callable[[Duration], object] | None = None,
) -> Snapshot:
    """Observe the job and return a snapshot of it. For the arguments and errors, see `observed`."""
    with observed(plan, timeout, clock, pause) as (watcher, job):
        return snapshot_of(job, plan.settings, tuple(watcher.backend.store_members()))


def as_dict(snapshot: Snapshot) -> dict[str, Any]:
    """Return the snapshot as JSON values. docs/reference/status.md describes the schema."""
    settings, job, state = snapshot.settings, snapshot.job, snapshot.state
    failures, closed = first_failures(state), state.closed
    first = ChildFailedError("", failures).get_first_failure()[1] if failures else None
    return {
        "version": VERSION,
        "run_id": settings.rdzv_id,
        "backend": settings.rdzv_backend,
        "endpoint": settings.rdzv_endpoint,
        "phase": snapshot.phase.value,
        "round": state.round.number,
        "formed_because": state.reason,
        "min_nodes": snapshot.nodes.min if snapshot.nodes else None,
        "max_nodes": snapshot.nodes.max if snapshot.nodes else None,
        "members": [_node(view) for view in snapshot.members],
        "others": [_node(view) for view in snapshot.others],
        "missing": list(snapshot.missing),
        "restarts": state.restarts,
        "max_restarts": snapshot.max_restarts,
        "last_end": None if state.end is None else _end(state.end),
        "first_failure": None if first is None else first.as_dict(),
        "closed": None if closed is None else {"by": closed.by, "reason": closed.reason, "succeeded": closed.succeeded},
        "unreadable": list(job.unreadable),
        "not_signed": job.not_signed,
        "store_members": list(snapshot.store_members),
        "observed_seconds": round(job.now - job.since, 3),
    }


def _node(view: NodeView) -> dict[str, Any]:
    age = view.beat.age
    return {
        "rank": view.rank,
        "node": view.about.node,
        "key": view.key,
        "host": view.about.host,
        "address": view.about.address,
        "role": view.about.role,
        "local_world_size": view.about.local_world_size,
        "standing": view.standing.value,
        "beat_age_seconds": None if age is None else round(age, 3),
        "beat_seen": view.beat.seen,
        "note": view.note,
        "stop": view.stop and {name: value for name, value in asdict(view.stop).items() if name != "round"},
    }


def _end(end: End) -> dict[str, Any]:
    return {
        "cause": end.cause.value,
        "by": end.by,
        "reason": end.reason,
        "restart_used": end.counted,
        "reports": [
            {"node": report.node, "certain": report.certain, "failures": [item.as_dict() for item in report.failures]}
            for report in end.reports
        ],
    }


def as_text(snapshot: Snapshot) -> str:
    """Return the output of `elastic status`."""
    settings, job, state = snapshot.settings, snapshot.job, snapshot.state
    lines = [f"job {settings.rdzv_id} ({settings.rdzv_backend} at {settings.rdzv_endpoint})", *_summary(snapshot)]
    views = (*snapshot.members, *snapshot.others)
    if views:
        lines += ["", *_table([_HEAD, *(_row(view) for view in views)])]
        lines += [f"  {view.about.node} was refused: {view.note}" for view in views if view.note]
        lines += [f"  {view.about.node} {_saving(view.stop)}" for view in views if view.stop]
    if job.unreadable:
        lines.append(f"  unreadable entries (from another version or another program): {', '.join(job.unreadable)}")
    if job.not_signed:
        lines.append(f"  values ignored because they are not signed with the job's secret: {job.not_signed}")
    if (end := state.end) is not None:
        cost = "; it used a restart" if end.counted else ""
        if end.cause_unclear and snapshot.phase is Phase.GATHERING:
            cost = "; a lost node may be the cause; the next round or a late heartbeat will show whether it is"
        lines += ["", f"Last round ended: {end.cause.value}: {end.reason}{cost}"]
    lines = [in_one_line(line) for line in lines]
    lost = state.end is not None and state.end.cause is Cause.LOST  # the failures are its consequences
    if not lost and (failures := first_failures(state)):
        from elastic_core.report import failure_lines

        lines += failure_lines(failures)
    return "\n".join(lines) + "\n"


def _summary(snapshot: Snapshot) -> Iterator[str]:
    yield f"  {_phase(snapshot)}"
    state = snapshot.state
    if snapshot.phase is Phase.RUNNING and state.reason:
        yield f"  round {state.round.number} formed because: {state.reason}"
    if snapshot.missing:
        yield f"  missing: {', '.join(snapshot.missing)}"
    yield f"  restarts used: {state.restarts} of {snapshot.max_restarts}"
    if snapshot.store_members:
        yield f"  store members: {', '.join(snapshot.store_members)}"


def _phase(snapshot: Snapshot) -> str:
    closed, nodes, number = snapshot.state.closed, snapshot.nodes, snapshot.state.round.number
    if closed is not None:
        how = "succeeded" if closed.succeeded else "failed"
        return f"the job {how} in round {number}; closed by {closed.by}: {closed.reason}"
    allowed = f" ({nodes.min} to {nodes.max} allowed)" if nodes and nodes.min < nodes.max else ""
    if snapshot.phase is Phase.RUNNING:
        here = len(snapshot.members) - snapshot.count(NodeStanding.GONE)
        return f"round {number} runs with {counted(here, 'node')}{allowed}"
    last = f"round {number} is over" if number else "no round has formed yet"
    joined = snapshot.count(NodeStanding.JOINED)
    if nodes is None:
        return f"{last}; {counted(joined, 'node')} joined for the next round"
    wanted = nodes.min if joined < nodes.min else nodes.max
    return f"{last}; {joined} of {wanted} nodes joined for the next round{allowed}"


def _row(view: NodeView) -> tuple[str, ...]:
    rank, node = "-" if view.rank is None else str(view.rank), view.about
    cells = (rank, node.node, node.host, node.address, node.role, str(node.local_world_size))
    return (*(in_one_line(cell) or "-" for cell in cells), _beat(view.beat, view.standing), view.standing.value)


def _beat(beat: HeartbeatState, standing: NodeStanding) -> str:
    if beat.age is None:
        return "-" if standing in (NodeStanding.GONE, NodeStanding.DONE) else "alive"
    if beat.seen and not beat.late:
        return f"{beat.age:.1f} s"
    if standing is NodeStanding.LEAVING:
        return "-"
    silence = f"none for {beat.age:.1f} s" if beat.seen else f"none seen in {beat.age:.1f} s"
    return f"late: {silence}" if beat.late else silence


def _saving(stop: StopStatus) -> str:
    since, until = (time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) for at in (stop.since, stop.deadline))
    count = f"{len(stop.saved)} of {len(stop.saved) + len(stop.unsaved)} ranks have saved"
    missing = f"; not yet: {', '.join(map(str, stop.unsaved))}" if stop.unsaved else ""
    return f"has been stopping since {since} UTC, and saves after step {stop.step}, by {until} UTC: {count}{missing}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
