"""The older protocol as a table: what may happen to the shared document, in which state, and what comes of it.

What is not in this table cannot happen: `steps.py` looks every change up here, and the state diagram of the docs is
drawn from it. Nothing else of the package is imported here, so that the docs need not install it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Status(enum.Enum):
    """The states of the document. None stands for "there is no document"."""

    SETUP = "setup"
    JOINABLE = "joinable"
    FROZEN = "frozen"
    FINAL = "final"
    CLOSED = "closed"


class Event(enum.Enum):
    """What can happen to the document."""

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
    """What is done in the same transaction that writes the document (`RENEW`: right after it)."""

    LEASE_SETUP = "the document expires after the setup time"
    LEASE_CALLER = "the document lives as long as the node that makes the last call"
    LEASE_FROZEN = "the document expires when nobody confirms for the confirm time"
    LEASE_RUN = "the document outlives its writer by the time that a run is kept"
    KEEP_LEASE = "the document's lease stays"
    RENEW = "the confirm time begins anew"
    KEEP_ALIVE = "the node's keep-alive is written, attached to the node's own lease"


class Transition(NamedTuple):
    """One row: in state `before`, `event` leads to `after`. `when` says in words who does it and on what condition."""

    before: Status | None
    event: Event
    after: Status | None
    when: str
    effects: tuple[Effect, ...] = ()


_GIVES_UP = "a participant gives up before the round is final: the others begin anew"
_ALL_ALONE = "a participant gives up, or who created it does and nobody has joined: the others begin anew"
_CLOSES = "the job is over: no node takes part again"
_LEASE_ENDS = "etcd ends the lease"

TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, Event.CREATE, Status.SETUP, "any node that finds no document", (Effect.LEASE_SETUP,)),
    Transition(
        Status.SETUP,
        Event.OPEN,
        Status.JOINABLE,
        "the node that created it",
        (Effect.LEASE_RUN,),
    ),
    Transition(Status.JOINABLE, Event.JOIN, Status.JOINABLE, "a node takes the next rank", (Effect.KEEP_LEASE,)),
    Transition(
        Status.JOINABLE,
        Event.CALL,
        Status.JOINABLE,
        "a node takes the rank that reaches the minimum: it makes the last call",
        (Effect.LEASE_CALLER,),
    ),
    Transition(Status.JOINABLE, Event.FILL, Status.FROZEN, "a node takes the last free rank", (Effect.LEASE_FROZEN,)),
    Transition(
        Status.JOINABLE,
        Event.END_CALL,
        Status.FROZEN,
        "the last call is over; by the node that makes it",
        (Effect.LEASE_FROZEN,),
    ),
    Transition(
        Status.FROZEN,
        Event.CONFIRM,
        Status.FROZEN,
        "a participant shows that it lives; others are still to do so",
        (Effect.KEEP_ALIVE, Effect.KEEP_LEASE, Effect.RENEW),
    ),
    Transition(
        Status.FROZEN,
        Event.COMPLETE,
        Status.FINAL,
        "the last participant shows that it lives",
        (Effect.KEEP_ALIVE, Effect.LEASE_RUN),
    ),
    Transition(
        Status.FINAL,
        Event.ANNOUNCE,
        Status.FINAL,
        "a node that is in no round waits for the next",
        (Effect.KEEP_LEASE,),
    ),
    Transition(Status.FINAL, Event.WITHDRAW, Status.FINAL, "a node that waits gives up", (Effect.KEEP_LEASE,)),
    Transition(
        Status.FINAL,
        Event.BREAK,
        None,
        "a keep-alive is gone; by who wants a round, or by the member that leaves",
    ),
    Transition(Status.SETUP, Event.ABANDON, None, "the node that created it gives up"),
    Transition(Status.JOINABLE, Event.ABANDON, None, _ALL_ALONE),
    Transition(Status.FROZEN, Event.ABANDON, None, _GIVES_UP),
    Transition(Status.SETUP, Event.EXPIRE, None, f"{_LEASE_ENDS}: who created it did not open it in time"),
    Transition(Status.JOINABLE, Event.EXPIRE, None, f"{_LEASE_ENDS}: who makes the last call died, or all are gone"),
    Transition(Status.FROZEN, Event.EXPIRE, None, f"{_LEASE_ENDS}: a participant did not confirm in time"),
    Transition(
        Status.FINAL, Event.EXPIRE, None, f"{_LEASE_ENDS}: the member that made it final has been gone for long"
    ),
    Transition(Status.CLOSED, Event.EXPIRE, None, f"{_LEASE_ENDS}: its writer has been gone for long"),
    Transition(None, Event.CLOSE, Status.CLOSED, _CLOSES, (Effect.LEASE_RUN,)),
    Transition(Status.SETUP, Event.CLOSE, Status.CLOSED, _CLOSES, (Effect.LEASE_RUN,)),
    Transition(Status.JOINABLE, Event.CLOSE, Status.CLOSED, _CLOSES, (Effect.LEASE_RUN,)),
    Transition(Status.FROZEN, Event.CLOSE, Status.CLOSED, _CLOSES, (Effect.LEASE_RUN,)),
    Transition(Status.FINAL, Event.CLOSE, Status.CLOSED, _CLOSES, (Effect.LEASE_RUN,)),
)
"""Every transition; no state has two for one event."""

BY_CAUSE = {(row.before, row.event): row for row in TRANSITIONS}
"""The same, by state and event."""
