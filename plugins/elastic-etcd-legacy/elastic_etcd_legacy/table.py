"""The older protocol as a table of all transitions of the shared document.

`steps.py` looks up every change here, so no other transition is possible. The state diagram in the docs is generated
from this table. The module imports nothing else from the package, so that the docs can load it without installing the
package.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Status(enum.Enum):
    """The document's states. None means that there is no document."""

    SETUP = "setup"
    JOINABLE = "joinable"
    FROZEN = "frozen"
    FINAL = "final"
    CLOSED = "closed"


class Event(enum.Enum):
    """The events that change the document."""

    CREATE = "create"
    OPEN = "open"
    JOIN = "join"
    CALL = "call"
    FILL = "fill"
    END_CALL = "end call"
    CONFIRM = "confirm"
    COMPLETE = "complete"
    ANNOUNCE = "announce"
    WITHDRAW = "withdraw"
    ABANDON = "abandon"
    BREAK = "break"
    EXPIRE = "expire"
    CLOSE = "close"


class Effect(enum.Enum):
    """Side effects of a transition. `RENEW` immediately follows the transaction that writes the document. All other
    effects are part of that transaction."""

    LEASE_SETUP = "the document expires after the setup timeout"
    LEASE_CALLER = "the document expires with the lease of the node that makes the last call"
    LEASE_FROZEN = "the document expires if no participant confirms within the confirm timeout"
    LEASE_RUN = "the document is kept for the retention time after its writer exits"
    KEEP_LEASE = "the document keeps its lease"
    RENEW = "the confirm timeout starts again"
    KEEP_ALIVE = "the node's keep-alive is written under the node's own lease"


class Transition(NamedTuple):
    """One row of the table: in state `before`, `event` leads to `after`. `when` names the actor and the condition."""

    before: Status | None
    event: Event
    after: Status | None
    when: str
    effects: tuple[Effect, ...] = ()


_FROZEN_ABANDONED = "a participant gives up before the round is final; the other nodes start again"
_JOINABLE_ABANDONED = (
    "a participant gives up, or the creator gives up before any node has joined; the other nodes start again"
)
_CLOSES = "the job is over; no node joins again"
_LEASE_ENDS = "the lease expires"

TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, Event.CREATE, Status.SETUP, "no document exists; any node creates it", (Effect.LEASE_SETUP,)),
    Transition(
        Status.SETUP,
        Event.OPEN,
        Status.JOINABLE,
        "the creator opens the document",
        (Effect.LEASE_RUN,),
    ),
    Transition(Status.JOINABLE, Event.JOIN, Status.JOINABLE, "a node takes the next rank", (Effect.KEEP_LEASE,)),
    Transition(
        Status.JOINABLE,
        Event.CALL,
        Status.JOINABLE,
        "a node takes the rank that completes the minimum; it makes the last call",
        (Effect.LEASE_CALLER,),
    ),
    Transition(Status.JOINABLE, Event.FILL, Status.FROZEN, "a node takes the last free rank", (Effect.LEASE_FROZEN,)),
    Transition(
        Status.JOINABLE,
        Event.END_CALL,
        Status.FROZEN,
        "the node that makes the last call ends it",
        (Effect.LEASE_FROZEN,),
    ),
    Transition(
        Status.FROZEN,
        Event.CONFIRM,
        Status.FROZEN,
        "a participant confirms that it is alive; others have yet to confirm",
        (Effect.KEEP_ALIVE, Effect.KEEP_LEASE, Effect.RENEW),
    ),
    Transition(
        Status.FROZEN,
        Event.COMPLETE,
        Status.FINAL,
        "the last participant confirms that it is alive",
        (Effect.KEEP_ALIVE, Effect.LEASE_RUN),
    ),
    Transition(
        Status.FINAL,
        Event.ANNOUNCE,
        Status.FINAL,
        "a node outside the round waits for the next one",
        (Effect.KEEP_LEASE,),
    ),
    Transition(Status.FINAL, Event.WITHDRAW, Status.FINAL, "a waiting node gives up", (Effect.KEEP_LEASE,)),
    Transition(
        Status.FINAL,
        Event.BREAK,
        None,
        "a node that wants to join a round finds that a keep-alive is missing, or a member leaves",
    ),
    Transition(Status.SETUP, Event.ABANDON, None, "the creator gives up"),
    Transition(Status.JOINABLE, Event.ABANDON, None, _JOINABLE_ABANDONED),
    Transition(Status.FROZEN, Event.ABANDON, None, _FROZEN_ABANDONED),
    Transition(Status.SETUP, Event.EXPIRE, None, f"{_LEASE_ENDS}: the creator did not open the document in time"),
    Transition(
        Status.JOINABLE,
        Event.EXPIRE,
        None,
        f"{_LEASE_ENDS}: the node that makes the last call has failed, or all nodes have failed",
    ),
    Transition(Status.FROZEN, Event.EXPIRE, None, f"{_LEASE_ENDS}: a participant did not confirm in time"),
    Transition(
        Status.FINAL, Event.EXPIRE, None, f"{_LEASE_ENDS}: the member that made the document final exited long ago"
    ),
    Transition(Status.CLOSED, Event.EXPIRE, None, f"{_LEASE_ENDS}: the document's writer exited long ago"),
    Transition(None, Event.CLOSE, Status.CLOSED, _CLOSES, (Effect.LEASE_RUN,)),
    Transition(Status.SETUP, Event.CLOSE, Status.CLOSED, _CLOSES, (Effect.LEASE_RUN,)),
    Transition(Status.JOINABLE, Event.CLOSE, Status.CLOSED, _CLOSES, (Effect.LEASE_RUN,)),
    Transition(Status.FROZEN, Event.CLOSE, Status.CLOSED, _CLOSES, (Effect.LEASE_RUN,)),
    Transition(Status.FINAL, Event.CLOSE, Status.CLOSED, _CLOSES, (Effect.LEASE_RUN,)),
)
"""All transitions, at most one for each state and event."""

BY_CAUSE = {(row.before, row.event): row for row in TRANSITIONS}
"""All transitions, by state and event."""
