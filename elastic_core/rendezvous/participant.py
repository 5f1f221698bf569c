"""What the state means for one node: has the round it wants formed, and what became of the one it is in. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.interfaces.handler import Outcome, Verdict
from elastic_core.rendezvous.state import Cause

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.errors import ProcessFailure
    from elastic_core.rendezvous.state import Report, State


class Standing(enum.Enum):
    """Where a node stands that wants the next round.

    MEMBER: it has formed, with the node in it. GATHERING: none runs. WAITING: one runs that will end for this node.
    SPARE: one runs that is full. CLOSED, DRAINED, REFUSED: there will be none for it.
    """

    MEMBER = "member"
    GATHERING = "gathering"
    WAITING = "waiting"
    SPARE = "spare"
    CLOSED = "closed"
    DRAINED = "drained"
    REFUSED = "refused"


def standing(state: State, key: str, after: int, max_nodes: int) -> Standing:
    """Where the node stands that was last in round `after`."""
    if state.closed:
        return Standing.CLOSED
    if state.refusal(key):
        return Standing.REFUSED
    if state.open and state.round > after and state.seated(key):
        return Standing.MEMBER
    if key in state.draining:
        return Standing.DRAINED
    if not state.open:
        return Standing.GATHERING
    return Standing.SPARE if state.survivors >= max_nodes else Standing.WAITING


def missed(state: State, key: str, after: int) -> int | None:
    """The last round that formed with a node in it which had been over before the node looked, when it was last in
    round `after`; None if there is none. The node has to announce that it wants a newer one: it cannot have run that
    round, but nobody else knows, and until then it is held to be still in it."""
    last = state.round if state.seated(key) else state.last_round_of(key)
    running = state.open and state.seated(key)
    return last if last > after and not running else None


def verdict(state: State, key: str, number: int) -> Verdict | None:
    """What has become of round `number`, of which the node is a member; None while it runs."""
    failures = first_failures(state)
    if state.closed:
        return Verdict(
            Outcome.CLOSED,
            state.closed.reason,
            succeeded=state.closed.succeeded,
            by=state.closed.by,
            failures={} if state.closed.succeeded else failures,
        )
    if key in state.draining:
        return Verdict(Outcome.DRAINED, "somebody asked this node to leave (drain)")
    if state.round == number and state.open:
        return None
    if state.round > number or state.end is None:
        return Verdict(Outcome.RESTART, f"round {state.round} formed without this node, which was held to be gone")
    failed = state.end.cause is Cause.FAILURE
    return Verdict(Outcome.RESTART, state.end.reason, failed, failures=failures if failed else {})


def first_failures(state: State) -> Mapping[int, ProcessFailure]:
    """The workers' failures that ended the last round, by global rank, of all nodes that told: first those that are
    certain not to have followed from others, in the order of telling."""
    reports = sorted(state.end.reports if state.end else (), key=lambda report: not report.certain)
    failures = [failure for report in reports for failure in _causes_first(report)]
    return {failure.global_rank: failure for failure in failures}


def _causes_first(report: Report) -> list[ProcessFailure]:
    return sorted(report.failures, key=lambda failure: failure.caused_by is not None)


@dataclass(frozen=True)
class Lead:
    """Who runs `decide`: position 0 leads; the next ones step in when the leaders' counter stands still, the sooner the
    nearer they are, so that not all do at once."""

    position: int

    @property
    def patience(self) -> float:
        """How many windows of silence until this node steps in."""
        return 1.0 + 0.25 * min(self.position - 1, 12)

    @property
    def near(self) -> bool:
        """Whether it should look at the leaders' counter with every beat."""
        return self.position <= 2


def lead(state: State, key: str, older: int) -> Lead:
    """The node's place in the line: members that live and stay first, in rank order, then all others by age. `older`:
    how many entries are older, about."""
    out = {key: rank for key in (*state.gone, *state.done, *state.draining) if (rank := state.rank(key)) is not None}
    rank = state.rank(key)
    if rank is None or key in out:
        return Lead(len(state.seats) - len(out) + older)
    return Lead(rank - sum(other < rank for other in out.values()))
