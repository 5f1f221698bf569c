"""The state on which the nodes agree, the seats of a round, and the entry that each node announces.

Only the functions in this module change the state. Each of them is pure and returns the next state, or the same object
if nothing changes. A node can therefore repeat a change if it does not know whether the change was written. The
functions at the end describe what the state means for one node.
"""

from __future__ import annotations

import enum
import functools
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar, overload
from urllib.parse import quote

from elastic_core.interfaces.handler import Outcome, Verdict, no_restart_left
from elastic_core.interfaces.node import Member, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from elastic_core.clock import Duration
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.health import StopStatus

T = TypeVar("T")
_PORT = r"\t(?:[1-5]?[0-9]{1,4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_KEYS = re.compile(r"\n([^\t\n]{0,510})" + r"\t[^\t\n]{0,255}" * 4 + _PORT * 2 + r"\t[1-9][0-9]{0,8}(?=\n|\Z)")
_MOST_SEATS = 2**16
_SEPARATORS = dict.fromkeys(map(ord, "\t\n"))


class Seat(NamedTuple):
    """A member's place in a round. `port` is the port of the workers' store if the member has rank 0. `lifeline` is the
    port on which other nodes watch whether the member's agent is alive, or 0 if there is none."""

    key: str
    member: Member
    port: int = 0
    lifeline: int = 0


def _line(seat: Seat) -> str:
    node, host, address, role, size = seat.member
    return f"\n{seat.key}\t{node}\t{host}\t{address}\t{role}\t{seat.port}\t{seat.lifeline}\t{size}"


def _seat(line: str) -> Seat:
    key, node, host, address, role, port, lifeline, size = line.split("\t")
    return Seat(key, Member(node, host, address, role, int(size)), int(port), int(lifeline))


def _member(line: str) -> Member:
    return _seat(line).member


class _Lazy(Sequence[T]):
    """Objects that are made from lines on demand. Every node of a round receives all seats, but most nodes read only
    two. With ten thousand nodes, creating an object for each seat would take longer than everything else in a round."""

    def __init__(self, lines: Sequence[str], make: Callable[[str], T]) -> None:
        self._lines = lines
        self._make = make

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._lines)

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[T, ...]: ...

    def __getitem__(self, place: int | slice) -> T | tuple[T, ...]:
        found = self._lines[place]
        return self._make(found) if isinstance(found, str) else tuple(map(self._make, found))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Seats(_Lazy[Seat]):
    """The seats of a round in rank order, as a string with one line per seat. No field contains a tab or a newline;
    `codec` checks announced entries.

    Args:
        text: for each seat, a newline and the tab-separated fields.
    """

    def __init__(self, text: str = "") -> None:
        self.text = text
        super().__init__(text[1:].split("\n") if text else [], _seat)

    @classmethod
    def of(cls, seats: Iterable[Seat]) -> Seats:
        """Return these seats, in the given order."""
        return cls("".join(map(_line, seats)))

    @classmethod
    def unpacked(cls, data: bytes, longest: int) -> Seats:
        """Return the seats from untrusted packed data. Raises ValueError if the data is invalid, the text is too long
        or malformed, two seats have the same key, or there are too many seats."""
        reader = zlib.decompressobj()
        try:
            unpacked = reader.decompress(data, longest)
        except zlib.error as error:
            raise ValueError(f"expected packed seats, found {data[:30]!r}: {error}") from error
        if not reader.eof or reader.unused_data:
            raise ValueError(f"expected complete packed seats of at most {longest} bytes")
        text = unpacked.decode()
        if text.count("\n") > _MOST_SEATS:  # a few bytes may decompress to millions of lines
            raise ValueError(f"more than {_MOST_SEATS} members")
        keys = _KEYS.findall(text)
        if len(keys) != text.count("\n") or text[:1] not in ("", "\n"):
            raise ValueError("a line does not describe a member")
        if not text.translate(_SEPARATORS).isprintable():
            raise ValueError("a line has characters that are not allowed in names")
        ranks = {key: rank for rank, key in enumerate(keys)}
        if len(ranks) != len(keys):
            raise ValueError("a member has two seats")
        seats = cls(text)
        seats._ranks, seats.packed = ranks, data
        return seats

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seats) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def rank(self, key: str) -> int | None:
        """Return the rank of the seat with this key, or None."""
        return self._ranks.get(key)

    @property
    def keys(self) -> Iterable[str]:
        """The keys of all seats, in rank order."""
        return self._ranks.keys()

    @property
    def members(self) -> Sequence[Member]:
        """The members of all seats, in rank order."""
        return _Lazy(self._lines, _member)

    @functools.cached_property
    def _ranks(self) -> dict[str, int]:
        return {line[: line.index("\t")]: rank for rank, line in enumerate(self._lines)}

    @functools.cached_property
    def packed(self) -> bytes:
        """The seats as compressed text with a checksum. The result takes only a few bytes per seat, because most seats
        are similar."""
        return zlib.compress(self.text.encode(), 1)


NOBODY = Seats()


class RoundId(NamedTuple):
    """Identifies a round. The round's number alone is not enough, because numbers are reused after a store has lost its
    data. Before the first round, the id is falsy. `str` returns the number.

    Args:
        number: the round's number, counted from 1; 0 before the first round.
        by: a string that is unique to the write that formed the round.
    """

    number: int = 0
    by: str = ""

    def __bool__(self) -> bool:
        return self.number > 0

    def __str__(self) -> str:
        return str(self.number)

    @property
    def name(self) -> str:
        """The round's name for use in a store's keys; see `RoundStores.open`."""
        return f"{self.number}-{quote(self.by, safe='')}"


NO_ROUND = RoundId()
_DESCRIBED = [item.name for item in fields(Node) if item.name != "name"]  # an entry has the same fields
DRAINED = "this node was asked to leave (drain, stop)"
MOST_REPORTS = 8
"""The maximum number of reports in a state. Every node reads all reports, and users need no more than this."""


@dataclass(frozen=True)
class Report:
    """One node's report of its failed workers.

    Args:
        certain: whether the loss of a peer can be ruled out as the cause.
        number: the report's sequence number on its node; a later report replaces an earlier one.
    """

    key: str
    node: str
    failures: tuple[ProcessFailure, ...]
    certain: bool
    number: int = 0


@dataclass(frozen=True)
class Reported:
    """A node's report about a round that another node has already ended. The report is part of the node's entry, and
    the leader copies it to the state. If many nodes fail or leave at the same time, a single write therefore suffices.

    Args:
        failure: the report of the node's failed workers, if any.
        leaves: why the node leaves the job; empty if it stays.
        ended: keys of members whose agents have ended, according to this node's lifeline.
    """

    round: RoundId
    failure: Report | None = None
    leaves: str = ""
    ended: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """The entry that a node announces under its key. No other node writes to that key.

    Args:
        key: the node's name and a suffix that is unique to each start of the agent.
        node: the node's name.
        address, port: the address of the workers' store if this node becomes rank 0.
        stop_timeout: how many seconds this node may take to stop its workers.
        after: the last round that the node knows of.
        waits: whether the node waits for a round newer than `after`; False while it is in the round `after`.
        done: the round in which all of the node's workers succeeded.
        reported: the node's report about the last round that it was in.
        unreachable: keys of members of the last round that this node could not reach.
        lifeline: the port at `address` where other nodes watch whether this node's agent is alive; 0 if there is none.
        stop: which workers have saved, if the workers are stopping at a common step. Only observers read it.
    """

    key: str
    node: str
    host: str = ""
    address: str = ""
    port: int = 0
    role: str = "default"
    local_world_size: int = 1
    rank_hint: int | None = None
    max_restarts: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    stop_timeout: Duration = 0.0
    after: RoundId = NO_ROUND
    waits: bool = True
    done: RoundId = NO_ROUND
    reported: Reported | None = None
    unreachable: tuple[str, ...] = ()
    lifeline: int = 0
    stop: StopStatus | None = None

    @classmethod
    def of(cls, node: Node, key: str) -> Entry:
        """Return the entry of a node that has not been in a round yet."""
        described = {name: getattr(node, name) for name in _DESCRIBED}
        return cls(key, node.name, **{**described, "labels": dict(node.labels)})

    @property
    def described(self) -> Node:
        """The node as its agent described it."""
        return Node(self.node, **{name: getattr(self, name) for name in _DESCRIBED})

    @property
    def seat(self) -> Seat:
        """This node's place in a round."""
        member = Member(self.node, self.host, self.address, self.role, self.local_world_size)
        return Seat(self.key, member, self.port, self.lifeline)


class Cause(str, enum.Enum):
    """Why a round ended. Only FAILURE uses the restart budget."""

    FAILURE = "failure"
    LOST = "node lost"
    LEFT = "node left"
    JOINED = "node joined"
    DRAINED = "node drained"


@dataclass(frozen=True)
class End:
    """How a round ended. `counted` is True if this end has used a restart."""

    cause: Cause
    by: str
    reason: str
    reports: tuple[Report, ...] = ()
    counted: bool = False

    @property
    def cause_unclear(self) -> bool:
        """Whether the round ended with a failure that the loss of a node may have caused. The cause becomes clear when
        a member's heartbeats stop or when the next round forms."""
        return self.cause is Cause.FAILURE and not self.counted


@dataclass(frozen=True)
class Closed:
    """The end of the job. `by` is the name of the node that closed it."""

    by: str
    reason: str
    succeeded: bool


@dataclass(frozen=True)
class State:
    """Everything on which the nodes agree.

    Args:
        round: the last round that formed.
        open: whether that round is still running.
        seats: that round's members in rank order.
        gone: keys of members that have been lost or have left since the round formed.
        done: keys of members whose workers have succeeded.
        draining: keys of nodes that were asked to leave, each with the user's limit in seconds for stopping its
            workers, or None if there is no limit.
        stopped: the last round when a user stopped the job. Nodes that have been in no later round must leave, even if
            they were lost at that time.
        end: how the most recently ended round ended; kept while the next round runs.
        restarts: how many failures have been forgiven so far.
        max_restarts: how many failures are forgiven: the highest number that any member of the last round allows.
        reason: why the round formed at that moment.
        refused: keys of nodes that are not allowed to take part, each with the reason.
        min_nodes, max_nodes: the job's bounds, as configured on the node that formed the round; 0 before the first
            round.
        serial: incremented by every change; of two states in one store, the later one has the greater serial.
        origin: the key of the node that wrote the first state; distinguishes jobs with the same id.
    """

    round: RoundId = NO_ROUND
    open: bool = False
    seats: Seats = NOBODY
    gone: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    draining: Mapping[str, Duration | None] = field(default_factory=dict)
    stopped: RoundId = NO_ROUND
    end: End | None = None
    restarts: int = 0
    max_restarts: int = 0
    closed: Closed | None = None
    reason: str = ""
    refused: tuple[tuple[str, str], ...] = ()
    min_nodes: int = 0
    max_nodes: int = 0
    serial: int = 0
    origin: str = ""

    def seated(self, key: str) -> bool:
        """Return whether the node is a member of the last round."""
        return self.seats.rank(key) is not None

    def rank(self, key: str) -> int | None:
        """Return the node's group rank in the last round, or None if the node is not a member of it."""
        return self.seats.rank(key)

    def refusal(self, key: str) -> str:
        """Return why the node is not allowed to take part, or an empty string if it is allowed."""
        return dict(self.refused).get(key, "")

    @property
    def progress(self) -> tuple[int, bool, bool, int, int]:
        """A value that grows with every change. If it is smaller than before, the store has lost data."""
        return self.round.number, self.closed is not None, not self.open, self.restarts, self.serial

    @functools.cached_property
    def busy(self) -> tuple[str, ...]:
        """Keys of the members of the last round that are neither gone nor done, in rank order."""
        out = {*self.gone, *self.done}
        keys = tuple(self.seats.keys)
        return tuple(key for key in keys if key not in out) if out else keys

    def neighbour(self, key: str) -> Seat | None:
        """Return the member that the member with this key watches, or None. The watched member is the next one in rank
        order that is neither gone nor done, so exactly one node reports each lost agent."""
        rank, size, out = self.rank(key), len(self.seats), {*self.gone, *self.done}
        if rank is None or self.closed:
            return None
        following = (self.seats[(rank + step) % size] for step in range(1, size))
        return next((seat for seat in following if seat.key not in out), None)

    def names(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Return the names of these members."""
        return tuple(self.seats[rank].member.node for key in keys if (rank := self.rank(key)) is not None)


def formed(
    state: State, seats: Iterable[Seat], max_restarts: int, reason: str, announced: Collection[str] = ()
) -> State:
    """Return the state in which the next round has formed. The node that writes the state adds the round's identifier.
    `announced` lists the keys of all entries. Drained and refused nodes without an entry are dropped. Drained members
    of the last round are kept, because they may merely be cut off."""
    return replace(
        state,
        round=RoundId(state.round.number + 1),
        open=True,
        seats=Seats.of(seats),
        gone=(),
        done=(),
        max_restarts=max_restarts,
        reason=reason,
        draining={key: most for key, most in state.draining.items() if key in announced or state.seated(key)},
        refused=tuple(item for item in state.refused if item[0] in announced),
    )


def ended(state: State, cause: Cause, by: str, reason: str, gone: tuple[str, ...] = ()) -> State:
    """End the round because its membership changes. If the round is already over, only add `gone`."""
    if state.closed or not state.round:
        return state
    out = {*state.gone, *state.done}
    new = tuple(key for key in gone if state.seated(key) and key not in out)
    if not state.open:
        return replace(state, gone=state.gone + new) if new else state
    return replace(state, open=False, gone=state.gone + new, end=End(cause, by, reason))


def failed(state: State, round_id: RoundId, report: Report) -> State:
    """End the round for all nodes because a node's workers failed in it. A node's second report replaces its first. If
    several nodes report failures in one round, these failures use only one restart. A failure is not recorded if the
    round has already ended for another reason, because that end has caused the failure."""
    if state.closed or state.round != round_id or not state.seated(report.key):
        return state
    if state.open:
        amended = replace(state, open=False, end=End(Cause.FAILURE, report.node, why(report), (report,)))
    elif state.end and _is_new(report, state.end):
        amended = replace(state, end=_with_report(state.end, report))
    else:
        return state
    incurable = not all(failure.curable for failure in report.failures)
    alone = len(state.seats) == 1  # there is no peer whose loss could be the cause
    return counted_failure(amended, incurable) if report.certain or incurable or alone else amended


def _is_new(report: Report, end: End) -> bool:
    """Return whether the report adds information. A node may report again when it learns that another node's loss did
    not cause its failure. If there are too many reports, the certain ones take precedence."""
    known = next((other for other in end.reports if other.key == report.key), None)
    if known is None:
        full = len(end.reports) >= MOST_REPORTS
        return end.cause is Cause.FAILURE and (not full or (report.certain and not all(r.certain for r in end.reports)))
    newer = (report.number, report.certain) > (known.number, known.certain)
    return newer and (end.cause is Cause.FAILURE or report.certain)


def _with_report(end: End, report: Report) -> End:
    """Add the report to the end. The first certain report determines the reason."""
    others = [r for r in end.reports if r.key != report.key]
    if len(others) >= MOST_REPORTS:
        others.remove([r for r in others if not r.certain][-1])
    reports = (*others, report)
    if report.certain and not any(r.certain for r in others):
        return replace(end, cause=Cause.FAILURE, by=report.node, reason=why(report), reports=reports)
    return replace(end, reports=reports)


def counted_failure(state: State, incurable: bool = False) -> State:
    """Use one restart for the failure that ended the round, unless that failure has already used one. If no restart is
    left or none would help, close the job."""
    end = state.end
    if state.closed or end is None or (end.counted and not incurable):
        return state
    if incurable:
        return closed(state, end.by, f"{end.reason}; a restart would not help", succeeded=False)
    if state.restarts >= state.max_restarts:
        return closed(state, end.by, f"{end.reason}; {no_restart_left(state.max_restarts)}", succeeded=False)
    return replace(state, restarts=state.restarts + 1, end=replace(end, counted=True))


def followed(state: State, cause: Cause, by: str, reason: str) -> State:
    """Record that the loss of a member caused the failure. The failure therefore uses no restart. The reports are kept,
    because they show users what the loss caused."""
    end = state.end
    if state.closed or end is None or not end.cause_unclear:
        return state
    return replace(state, end=replace(end, cause=cause, by=by, reason=f"{reason}; what followed: {end.reason}"))


def why(report: Report) -> str:
    """Describe the report's failure."""
    first = next((f for f in report.failures if f.caused_by is None), None)
    if first is None:
        return f"workers of {report.node} failed"
    return f"rank {first.global_rank} on {report.node}: {first.how}"


def first_failures(state: State) -> Mapping[int, ProcessFailure]:
    """Return the worker failures that ended the last round, by global rank. Certain reports come first and, within a
    report, failures that no other failure caused."""
    reports = sorted(state.end.reports if state.end else (), key=lambda report: not report.certain)
    causes_first = (sorted(report.failures, key=lambda failure: failure.caused_by is not None) for report in reports)
    return {failure.global_rank: failure for failures in causes_first for failure in failures}


def left(state: State, key: str, reason: str) -> State:
    """Record that a node leaves. If its workers were running, the round ends for all nodes."""
    if not state.seated(key) or key in state.done:
        return state
    node = state.names([key])[0]
    if key in state.draining:
        return ended(state, Cause.DRAINED, node, f"{node} is drained", (key,))
    return ended(state, Cause.LEFT, node, f"{node} left: {reason}", (key,))


def succeeded(state: State, keys: Collection[str], round_id: RoundId) -> State:
    """Record that the workers of these members have succeeded in this round. The round continues even if such a member
    leaves. The job is over when all members have succeeded."""
    if state.closed or state.round != round_id or not state.open:
        return state
    done = set(state.done)
    new = tuple(key for key in keys if state.seated(key) and key not in done)
    return replace(state, done=(*state.done, *new)) if new else state


def drained(state: State, key: str, within: Duration | None = None) -> State:
    """Record that a user has asked a node to leave. The node's workers get at most `within` seconds if the user has set
    a limit. If the workers are running, the leader ends the round. A second request for the same node has no effect."""
    if state.closed or key in state.draining:
        return state
    return replace(state, draining={**state.draining, key: within})


def refused(state: State, keys: Collection[tuple[str, str]]) -> State:
    """Exclude these nodes, each for the given reason."""
    new = tuple(item for item in keys if not state.refusal(item[0]))
    return replace(state, refused=state.refused + new) if new and not state.closed else state


def closed(state: State, by: str, reason: str, succeeded: bool) -> State:
    """Close the job for good."""
    if state.closed:
        return state
    return replace(state, open=False, closed=Closed(by, reason, succeeded))


def recovered(known: State, found: State, runs: bool = True) -> State:
    """Return the state that the store should contain, according to a node that knows the state `known` and has read
    `found`. The result is `found` unless the store has lost data. After a loss of data, the result is the later of the
    two states. The end of the job, the number of used restarts, and nodes that were drained or excluded after the loss
    are always kept, but the end of an earlier job with the same id is ignored. If another node has started the job over
    and its round is running, only a node that still `runs` the known round overrules the new round."""
    if found.closed:
        return found if known.closed or not known.round or known.origin == found.origin else known
    overrules = runs or not found.open or found.origin == known.origin
    further = found
    if overrules and known.progress > found.progress:
        further = refused(known, found.refused)
        for key, within in found.draining.items():
            further = drained(further, key, within)
    if known.closed and not further.closed:
        further = replace(further, open=False, closed=known.closed)
    restarts = max(known.restarts, found.restarts)
    return further if further.restarts == restarts else replace(further, restarts=restarts)


class JoinStatus(enum.Enum):
    """The progress of a node that is joining the next round.

    Attributes:
        MEMBER: the round has formed and includes the node.
        GATHERING: no round is running.
        WAITING: the running round will end to admit this node.
        SPARE: the running round is full.
        CLOSED, DRAINED, REFUSED: the node cannot join a round.
    """

    MEMBER = "member"
    GATHERING = "gathering"
    WAITING = "waiting"
    SPARE = "spare"
    CLOSED = "closed"
    DRAINED = "drained"
    REFUSED = "refused"


def join_status(state: State, key: str, after: RoundId, max_nodes: int) -> JoinStatus:
    """Return the progress of a node that wants a round newer than `after`."""
    if state.closed:
        return JoinStatus.CLOSED
    if state.refusal(key):
        return JoinStatus.REFUSED
    if state.open and state.round != after and state.seated(key):
        return JoinStatus.MEMBER
    if key in state.draining:
        return JoinStatus.DRAINED
    if not state.open:
        return JoinStatus.GATHERING
    return JoinStatus.SPARE if len(state.busy) >= max_nodes else JoinStatus.WAITING


def missed(state: State, key: str, after: RoundId) -> RoundId | None:
    """Return the last round if a node that wants a round newer than `after` has missed it, or None otherwise. A node
    misses a round if it is not a member, or if the round ended before the node read the state. The node must then
    announce that it wants a newer round."""
    running = state.open and state.seated(key)
    return state.round if state.round != after and not running else None


def verdict(state: State, key: str, round_id: RoundId) -> Verdict | None:
    """Return the reason why the node has to leave its round, or None while the round is running."""
    if state.closed:
        return Verdict(
            Outcome.CLOSED,
            state.closed.reason,
            succeeded=state.closed.succeeded,
            by=state.closed.by,
            failures={} if state.closed.succeeded else first_failures(state),
        )
    if key in state.draining:
        return Verdict(Outcome.DRAINED, DRAINED, within=state.draining[key])
    if state.round == round_id and state.open:
        return None
    if state.round != round_id or state.end is None:
        again = state.round.number <= round_id.number
        why = "because the store lost its data" if again else "without this node, which the other nodes considered lost"
        return Verdict(Outcome.RESTART, f"round {state.round} formed {'again ' if again else ''}{why}")
    return of_end(state)


def of_end(state: State) -> Verdict | None:
    """Return why the last round ended, or None if no round has ended."""
    if state.end is None:
        return None
    failed, lost = state.end.cause is Cause.FAILURE, state.end.cause is Cause.LOST
    failures = first_failures(state) if failed else {}
    judged = not state.end.cause_unclear
    return Verdict(Outcome.RESTART, state.end.reason, failed, failures=failures, lost=lost, judged=judged)
