"""Pure functions that change the document, and the etcd transactions for these changes. Each function looks up its
transition in the table. A step that the table or its own condition does not allow raises IllegalStep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_etcd.client.values import Compare, Delete, Field, Put, Transaction, absent

from elastic_etcd_legacy.document import Rendezvous, to_bytes
from elastic_etcd_legacy.table import BY_CAUSE, Effect, Event, Status, Transition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_etcd.client.values import Operation

    from elastic_etcd_legacy.document import DocumentView, KeepAlive
    from elastic_etcd_legacy.settings import Keys


class IllegalStep(ValueError):
    """The protocol does not allow this step here."""


@dataclass(frozen=True)
class Bounds:
    """The number of nodes in a round: 1 <= least <= most."""

    least: int
    most: int


@dataclass(frozen=True)
class Step:
    """A change to the document, which is written only if the document has not changed in the meantime. `after` is None
    if the step deletes the document."""

    transition: Transition
    after: Rendezvous | None


def create(before: Rendezvous | None, token: str) -> Step:
    """Create the rendezvous."""
    return _step(before, Event.CREATE, Rendezvous(Status.SETUP, creator=token))


def open_(before: Rendezvous | None, token: str) -> Step:
    """Let nodes join the rendezvous that this node created."""
    transition, document = _allowed(before, Event.OPEN)
    _require(document.creator == token, "only the creator may open it", document)
    return Step(transition, replace(document, status=Status.JOINABLE))


def join(before: Rendezvous | None, token: str, bounds: Bounds) -> Step:
    """Give the node the next rank. The node that takes the last rank freezes the participants. The node that completes
    the minimum makes the last call."""
    _, document = _allowed(before, Event.JOIN)
    _require(token not in document.participants, f"{token} has already joined", document)
    _require(len(document.participants) < bounds.most, f"it is full with {bounds.most} node(s)", document)
    participants = (*document.participants, token)
    if len(participants) == bounds.most:
        return _step(before, Event.FILL, Rendezvous(Status.FROZEN, participants=participants))
    event = Event.CALL if len(participants) == bounds.least else Event.JOIN
    return _step(before, event, replace(document, creator="", participants=participants))


def end_call(before: Rendezvous | None, token: str, bounds: Bounds) -> Step:
    """Freeze the participants when the last call is over."""
    transition, document = _allowed(before, Event.END_CALL)
    _require(caller(document, bounds) == token, "only the node that makes the last call may end it", document)
    return Step(transition, replace(document, status=Status.FROZEN))


def confirm(before: Rendezvous | None, token: str) -> Step:
    """Confirm that a participant is alive. The last confirmation makes the round final."""
    _, document = _allowed(before, Event.CONFIRM)
    _require(token in document.participants, f"{token} is not a participant", document)
    _require(token not in document.confirmed, f"{token} has already confirmed", document)
    confirmed = (*document.confirmed, token)
    if len(confirmed) < len(document.participants):
        return _step(before, Event.CONFIRM, replace(document, confirmed=confirmed))
    return _step(before, Event.COMPLETE, replace(document, status=Status.FINAL, confirmed=confirmed))


def announce(before: Rendezvous | None, token: str) -> Step:
    """Put a node on the waiting list of a final round, where the members of the round see it."""
    transition, document = _allowed(before, Event.ANNOUNCE)
    _require(
        token not in (*document.participants, *document.waiting), f"{token} is already a member or waiting", document
    )
    return Step(transition, replace(document, waiting=(*document.waiting, token)))


def give_up(before: Rendezvous | None, token: str) -> Step | None:
    """Remove this node from the rendezvous or the waiting list. Returns None if there is nothing to remove. If the
    round is not final yet, this ends the attempt for all nodes, because a rank cannot be given back. A member of a
    final round leaves by revoking its keep-alive instead."""
    if before is None:
        return None
    if before.status is Status.FINAL:
        return _withdraw(before, token) if token in before.waiting else None
    involved = token in (before.creator, *before.participants)
    return _step(before, Event.ABANDON, None) if involved and before.status is not Status.CLOSED else None


def _withdraw(before: Rendezvous, token: str) -> Step:
    return _step(before, Event.WITHDRAW, replace(before, waiting=tuple(t for t in before.waiting if t != token)))


def break_(before: Rendezvous | None) -> Step:
    """End a final round that has lost a member."""
    return _step(before, Event.BREAK, None)


def close(before: Rendezvous | None) -> Step | None:
    """Close the rendezvous permanently. Returns None if it is already closed."""
    if before is not None and before.status is Status.CLOSED:
        return None
    return _step(before, Event.CLOSE, Rendezvous(Status.CLOSED))


def caller(document: Rendezvous, bounds: Bounds) -> str | None:
    """Return the node that makes the last call, or None if fewer nodes than the minimum have joined."""
    return document.participants[bounds.least - 1] if len(document.participants) >= bounds.least else None


def transaction(
    keys: Keys, view: DocumentView, step: Step, lease: int, alive: tuple[KeepAlive, int] | None
) -> Transaction:
    """Return the transaction that writes the step's document if the stored document is still the view's.

    A document that was deleted and created again has a different revision, so a step computed from the old document
    never overwrites the new one.

    Args:
        lease: ID of the lease to attach the document to.
        alive: the keep-alive that a confirming step also writes, and the ID of its lease.
    """
    unchanged = absent(keys.document) if not view.revision else Compare(keys.document, Field.MODIFIED, view.revision)
    return Transaction((unchanged,), tuple(_operations(keys, view, step, lease, alive)))


def _step(before: Rendezvous | None, event: Event, after: Rendezvous | None) -> Step:
    transition = _row(before, event)
    found = None if after is None else after.status
    if found is not transition.after:
        raise IllegalStep(f"expected {event.value} to lead to {transition.after}, but it led to {found}")
    return Step(transition, after)


def _allowed(before: Rendezvous | None, event: Event) -> tuple[Transition, Rendezvous]:
    transition = _row(before, event)
    if before is None:
        raise IllegalStep(f"{event.value} requires a document")
    return transition, before


def _row(before: Rendezvous | None, event: Event) -> Transition:
    status = None if before is None else before.status
    transition = BY_CAUSE.get((status, event))
    if transition is None:
        where = "without a document" if status is None else f"in state {status.value}"
        raise IllegalStep(f"the protocol does not allow {event.value} {where}")
    return transition


def _require(holds: bool, violation: str, document: Rendezvous) -> None:
    if not holds:
        raise IllegalStep(f"{violation}: {document}")


def _operations(
    keys: Keys, view: DocumentView, step: Step, lease: int, alive: tuple[KeepAlive, int] | None
) -> Iterator[Operation]:
    if step.after is None:
        yield Delete(keys.document)
        return
    yield Put(keys.document, to_bytes(step.after), lease)
    if Effect.KEEP_ALIVE in step.transition.effects:
        if alive is None:
            raise ValueError("a confirming step requires a keep-alive")
        rank = step.after.participants.index(step.after.confirmed[-1])
        yield Put(keys.alive(view.version, rank), alive[0].to_bytes(), alive[1])
