"""The state: what all nodes agree on. It changes only when a round forms or ends, and only by the functions here.

Each of them is pure and returns the state that should follow, or the same object when nothing is to be changed, so
that doing it again after an answer was lost does no harm.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastic_core.rendezvous.seats import Seat, Seats, keys_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from elastic_core.errors import ProcessFailure


class Cause(str, enum.Enum):
    """Why a round ended. Only FAILURE uses the restart budget."""

    FAILURE = "failure"
    LOST = "node lost"
    LEFT = "node left"
    JOINED = "node joined"
    DRAINED = "node drained"


@dataclass(frozen=True)
class Report:
    """What one node tells of its failed workers. `certain`: they did not just follow from the loss of a peer."""

    key: str
    node: str
    failures: tuple[ProcessFailure, ...]
    certain: bool


@dataclass(frozen=True)
class End:
    """Why a round ended. `counted`: a restart was used for it."""

    cause: Cause
    by: str
    reason: str
    reports: tuple[Report, ...] = ()
    counted: bool = False


@dataclass(frozen=True)
class Closed:
    """The job is over. `by` is a node's name."""

    by: str
    reason: str
    succeeded: bool


@dataclass(frozen=True)
class State:
    """Everything the nodes agree on.

    Args:
        round: the number of the last round that formed; 0 for none.
        open: whether it still runs.
        seats: its members in rank order.
        gone: keys of members that were lost or left since it formed.
        done: keys of members that left it after their workers had succeeded.
        draining: keys of nodes that were asked to leave.
        end: why the last round that ended did; kept while the next one runs.
        restarts: failures that were forgiven so far.
        max_restarts: how many will be, as the node that formed the round was told.
        reason: why the round formed just then.
        absent: members of earlier rounds that are not in the last one, with the number of their last round: until they
            announce themselves anew, their entries are of the past.
        refused: keys that may not take part, and why.
        min_nodes, max_nodes: bounds of the job, as the node that formed the round was told; 0 before the first.
        serial: counted up by the keepers with every change: of two states of one store, which is the later one.
    """

    round: int = 0
    open: bool = False
    seats: Sequence[Seat] = ()
    gone: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    draining: tuple[str, ...] = ()
    end: End | None = None
    restarts: int = 0
    max_restarts: int = 0
    closed: Closed | None = None
    reason: str = ""
    absent: tuple[tuple[str, int], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    min_nodes: int = 0
    max_nodes: int = 0
    serial: int = 0
    _ranks: dict[str, int] = field(default_factory=dict, init=False, compare=False, repr=False)
    _absent: dict[str, int] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._absent.update(self.absent)

    def seated(self, key: str) -> bool:
        """Whether the node is a member of the last round."""
        return self.rank(key) is not None

    def rank(self, key: str) -> int | None:
        """The group rank that the node has, or had, in the last round."""
        if isinstance(self.seats, Seats):
            return self.seats.rank(key)
        if len(self._ranks) != len(self.seats):
            self._ranks.update({seat.key: rank for rank, seat in enumerate(self.seats)})
        return self._ranks.get(key)

    def seat(self, key: str) -> Seat | None:
        """The node's place in the last round."""
        if isinstance(self.seats, Seats):
            return self.seats.of(key)
        rank = self.rank(key)
        return None if rank is None else self.seats[rank]

    def last_round_of(self, key: str) -> int:
        """The last round that a node was in which is not in the present one; 0 for one that is not known."""
        return self._absent.get(key, 0)

    def refusal(self, key: str) -> str:
        """Why the node may not take part; empty if it may."""
        return dict(self.refused).get(key, "") if self.refused else ""

    @property
    def progress(self) -> tuple[int, bool, bool, int, int]:
        """Grows with every change: a store in which it is less than it was has lost its memory."""
        return self.round, self.closed is not None, not self.open, self.restarts, self.serial

    @property
    def surviving(self) -> tuple[Seat, ...]:
        """Members of the last round that are not known to be gone or done."""
        if not self.gone and not self.done:
            return tuple(self.seats)
        return tuple(seat for seat in self.seats if seat.key not in self.gone and seat.key not in self.done)

    @property
    def surviving_keys(self) -> list[str]:
        """Their keys."""
        return [key for key in keys_of(self.seats) if key not in self.gone and key not in self.done]

    @property
    def survivors(self) -> int:
        """How many they are."""
        return len(self.seats) - len(self.gone) - len(self.done)


def formed(
    state: State, seats: tuple[Seat, ...], max_restarts: int, reason: str, announced: Collection[str] = ()
) -> State:
    """The next round. `announced`: all keys that have an entry; what is kept about others is forgotten."""
    seated = {seat.key for seat in seats}
    past = {**dict(state.absent), **dict.fromkeys(keys_of(state.seats), state.round)}
    return replace(
        state,
        round=state.round + 1,
        open=True,
        seats=seats,
        gone=(),
        done=(),
        max_restarts=max_restarts,
        reason=reason,
        draining=tuple(key for key in state.draining if key in announced),
        refused=tuple(item for item in state.refused if item[0] in announced),
        absent=tuple((key, number) for key, number in past.items() if key not in seated and key in announced),
    )


def ended(state: State, cause: Cause, by: str, reason: str, gone: tuple[str, ...] = ()) -> State:
    """The round is over because its membership changes. Of a round that is over already only the list of those that
    are gone grows."""
    if state.closed or not state.round:
        return state
    new = tuple(key for key in gone if state.seated(key) and key not in state.gone and key not in state.done)
    if not state.open:
        return replace(state, gone=state.gone + new) if new else state
    return replace(state, open=False, gone=state.gone + new, end=End(cause, by, reason))


def failed(state: State, number: int, report: Report, max_restarts: int) -> State:
    """Workers of a node failed in round `number`: the round is over for everybody. A second report of the same node
    takes the place of its first; reports of several nodes about one round use one restart together. What fails in a
    round that was over for another cause followed from that, and is not told."""
    if state.closed or state.round != number or not state.seated(report.key):
        return state
    if state.open:
        told = replace(state, open=False, end=End(Cause.FAILURE, report.node, why(report), (report,)))
    elif state.end and state.end.cause is Cause.FAILURE and report not in state.end.reports:
        told = replace(state, end=_with_report(state.end, report))
    else:
        return state
    incurable = not all(failure.curable for failure in report.failures)
    alone = len(state.seats) == 1  # no peer whose loss could be the cause
    return counted_failure(told, max_restarts, incurable) if report.certain or incurable or alone else told


def _with_report(end: End, report: Report) -> End:
    """The first report that is certain gives the reason."""
    first = all(r.key != report.key for r in end.reports)
    reports = (*end.reports, report) if first else tuple(report if r.key == report.key else r for r in end.reports)
    if report.certain and not any(r.certain for r in end.reports if r.key != report.key):
        return replace(end, by=report.node, reason=why(report), reports=reports)
    return replace(end, reports=reports)


def counted_failure(state: State, max_restarts: int, incurable: bool = False) -> State:
    """Use a restart for the failure that ended the round, once; close the job when none is left."""
    end = state.end
    if state.closed or end is None or (end.counted and not incurable):
        return state
    if incurable:
        return closed(state, end.by, f"{end.reason}; a restart cannot cure it", succeeded=False)
    if state.restarts >= max_restarts:
        return closed(state, end.by, f"{end.reason}; {_spent(max_restarts)}", succeeded=False)
    return replace(state, restarts=state.restarts + 1, end=replace(end, counted=True))


def _spent(max_restarts: int) -> str:
    if max_restarts == 0:
        return "no restart is allowed (--max-restarts=0)"
    return f"all {max_restarts} restarts are used (--max-restarts)"


def why(report: Report) -> str:
    """The failure of a report in words."""
    first = next((f for f in report.failures if f.caused_by is None), None)
    if first is None:
        return f"workers of {report.node} failed"
    return f"rank {first.global_rank} on {report.node}: {first.reason or f'exit code {first.exitcode}'}"


def left(state: State, key: str, reason: str) -> State:
    """A node goes. If its workers ran, the round is over for everybody."""
    seat = state.seat(key)
    if seat is None or key in state.done:
        return state
    node = seat.member.node
    return ended(state, Cause.LEFT, node, f"{node} left: {reason}", (key,))


def left_done(state: State, key: str, number: int) -> State:
    """A member goes after its workers succeeded: the others work on."""
    if state.closed or state.round != number or not state.open or not state.seated(key) or key in state.done:
        return state
    return replace(state, done=(*state.done, key))


def drained(state: State, key: str, node: str) -> State:
    """Somebody asks a node to leave. If it is a member, the round is over for everybody."""
    if state.closed or key in state.draining:
        return state
    asked = replace(state, draining=(*state.draining, key))
    return ended(asked, Cause.DRAINED, node, f"{node} is drained") if state.open and state.seated(key) else asked


def refused(state: State, keys: Collection[tuple[str, str]]) -> State:
    """These nodes, each with the reason, may not take part."""
    new = tuple(item for item in keys if not state.refusal(item[0]))
    return replace(state, refused=state.refused + new) if new and not state.closed else state


def closed(state: State, by: str, reason: str, succeeded: bool) -> State:
    """The job is over, for good."""
    if state.closed:
        return state
    return replace(state, open=False, closed=Closed(by, reason, succeeded))


def recovered(known: State, found: State) -> State:
    """What should stand in a store in which `found` stands, for a node that has seen `known` there before: `found`
    itself, unless the store has lost its memory. Then it is whichever of the two is further on, and what must never be
    taken back holds as well: that the job is over, and the restarts that were used."""
    if found.closed:
        return found
    further = known if known.progress > found.progress else found
    if known.closed and not further.closed:
        further = replace(further, open=False, closed=known.closed)
    restarts = max(known.restarts, found.restarts)
    return further if further.restarts == restarts else replace(further, restarts=restarts)
