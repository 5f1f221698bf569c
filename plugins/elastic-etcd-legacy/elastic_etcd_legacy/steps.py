"""Pure functions that change the document, and the etcd transactions for these changes. The caller has checked that the
step is possible. Each function looks up its transition in the table, so a step that the table lacks is an error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_etcd.client.values import Compare, Delete, Field, Put, Transaction, absent

from elastic_etcd_legacy.document import Rendezvous, to_bytes
from elastic_etcd_legacy.table import BY_CAUSE, Event, Status, Transition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_etcd.client.values import Operation

    from elastic_etcd_legacy.document import DocumentView, KeepAlive
    from elastic_etcd_legacy.settings import Keys


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


def create(token: str) -> Step:
    """Create the rendezvous."""
    return _step(None, Event.CREATE, Rendezvous(Status.SETUP, creator=token))


def open_(before: Rendezvous) -> Step:
    """Let nodes join the rendezvous that this node created."""
    return _step(before, Event.OPEN, replace(before, status=Status.JOINABLE))


def join(before: Rendezvous, token: str, bounds: Bounds) -> Step:
    """Give the node the next rank. The node that takes the last rank freezes the participants. The node that completes
    the minimum makes the last call."""
    participants = (*before.participants, token)
    if len(participants) == bounds.most:
        return _step(before, Event.FILL, Rendezvous(Status.FROZEN, participants=participants))
    event = Event.CALL if len(participants) == bounds.least else Event.JOIN
    return _step(before, event, replace(before, creator="", participants=participants))


def end_call(before: Rendezvous) -> Step:
    """Freeze the participants when the last call of this node is over."""
    return _step(before, Event.END_CALL, replace(before, status=Status.FROZEN))


def confirm(before: Rendezvous, token: str) -> Step:
    """Confirm that a participant is alive. The last confirmation makes the round final."""
    confirmed = (*before.confirmed, token)
    if len(confirmed) < len(before.participants):
        return _step(before, Event.CONFIRM, replace(before, confirmed=confirmed))
    return _step(before, Event.COMPLETE, replace(before, status=Status.FINAL, confirmed=confirmed))


def announce(before: Rendezvous, token: str) -> Step:
    """Put a node on the waiting list of a final round, where the members of the round see it."""
    return _step(before, Event.ANNOUNCE, replace(before, waiting=(*before.waiting, token)))


def give_up(before: Rendezvous | None, token: str) -> Step | None:
    """Remove this node from the rendezvous or the waiting list. Returns None if there is nothing to remove. If the
    round is not final yet, this ends the attempt for all nodes, because a rank cannot be given back. A member of a
    final round leaves by revoking its keep-alive instead."""
    if before is None:
        return None
    if before.status is Status.FINAL:
        waiting = tuple(it for it in before.waiting if it != token)
        return _step(before, Event.WITHDRAW, replace(before, waiting=waiting)) if token in before.waiting else None
    involved = token in (before.creator, *before.participants)
    return _step(before, Event.ABANDON, None) if involved and before.status is not Status.CLOSED else None


def break_(before: Rendezvous) -> Step:
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
    transition = BY_CAUSE[before.status if before else None, event]
    assert transition.after is (after.status if after else None)
    return Step(transition, after)


def _operations(
    keys: Keys, view: DocumentView, step: Step, lease: int, alive: tuple[KeepAlive, int] | None
) -> Iterator[Operation]:
    if step.after is None:
        yield Delete(keys.document)
        return
    yield Put(keys.document, to_bytes(step.after), lease)
    if alive is not None:
        rank = step.after.participants.index(step.after.confirmed[-1])
        yield Put(keys.alive(view.version, rank), alive[0].to_bytes(), alive[1])
