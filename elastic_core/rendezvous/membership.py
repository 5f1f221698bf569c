"""A node's membership: the round that the node is in or wants, and how the state affects the node. All functions are
pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.clock import LONG_AGO
from elastic_core.interfaces.handler import Outcome, Verdict
from elastic_core.rendezvous.model import NO_ROUND, Cause, RoundId, first_failures

if TYPE_CHECKING:
    from elastic_core.clock import Instant
    from elastic_core.rendezvous.model import State

DRAINED = "this node was asked to leave (drain, stop)"


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


@dataclass(frozen=True)
class Membership:
    """A node's part in the job.

    Args:
        round: the node's current or last round.
        formed: the state when that round formed; None before the first round.
        running: whether the node is in a round.
        done: whether the node's workers have succeeded.
        joins: whether the node wants a round.
        join_by: when the node stops waiting for a round to form.
        contact_by: when the node stops waiting for the store's first answer.
        was_closed: whether the job was already closed when the node asked for its first round.
        cut_off: whether the node is stopping its workers because it could not reach the store.
        left: why the node has left the job; empty if it has not.
        shut: whether the node's handler has been shut down.
    """

    round: RoundId = NO_ROUND
    formed: State | None = None
    running: bool = False
    done: bool = False
    joins: bool = False
    join_by: Instant = LONG_AGO
    contact_by: Instant = LONG_AGO
    was_closed: bool = False
    cut_off: bool = False
    left: str = ""
    shut: bool = False
