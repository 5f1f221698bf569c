"""All changes of the document and the transactions that carry them out, as pure functions. Each change looks its
transition up in the table; a step that the table or its condition does not allow raises and changes nothing."""

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
    """How many nodes make a round: 1 <= least <= most."""

    least: int
    most: int


@dataclass(frozen=True)
class Step:
    """A change that is to be written, in the place of the very document that it was made of; `after` is None if the
    document goes."""

    transition: Transition
    after: Rendezvous | None


def create(before: Rendezvous | None, token: str) -> Step:
    """Begin a rendezvous where there is none."""
    return _step(before, Event.CREATE, Rendezvous(Status.SETUP, creator=token))


def open_(before: Rendezvous | None, token: str) -> Step:
    """Let nodes join the rendezvous that this node has created."""
    transition, document = _allowed(before, Event.OPEN)
    _require(document.creator == token, "only who created it opens it", document)
    return Step(transition, replace(document, status=Status.JOINABLE))


def join(before: Rendezvous | None, token: str, bounds: Bounds) -> Step:
    """Take the next rank. The node that takes the last one freezes the participants; the node that reaches the minimum
    makes the last call."""
    _, document = _allowed(before, Event.JOIN)
    _require(token not in document.participants, f"{token} has joined already", document)
    _require(len(document.participants) < bounds.most, f"there is room for {bounds.most}", document)
    participants = (*document.participants, token)
    if len(participants) == bounds.most:
        return _step(before, Event.FILL, Rendezvous(Status.FROZEN, participants=participants))
    event = Event.CALL if len(participants) == bounds.least else Event.JOIN
    return _step(before, event, replace(document, creator="", participants=participants))


def end_call(before: Rendezvous | None, token: str, bounds: Bounds) -> Step:
    """Freeze the participants, since the last call is over."""
    transition, document = _allowed(before, Event.END_CALL)
    _require(caller(document, bounds) == token, "only who makes the last call ends it", document)
    return Step(transition, replace(document, status=Status.FROZEN))


def confirm(before: Rendezvous | None, token: str) -> Step:
    """Show that a participant lives. When all have, the round is final."""
    _, document = _allowed(before, Event.CONFIRM)
    _require(token in document.participants, f"{token} does not take part", document)
    _require(token not in document.confirmed, f"{token} has confirmed already", document)
    confirmed = (*document.confirmed, token)
    if len(confirmed) < len(document.participants):
        return _step(before, Event.CONFIRM, replace(document, confirmed=confirmed))
    return _step(before, Event.COMPLETE, replace(document, status=Status.FINAL, confirmed=confirmed))


def announce(before: Rendezvous | None, token: str) -> Step:
    """Tell the members of a final round that a node waits for the next one."""
    transition, document = _allowed(before, Event.ANNOUNCE)
    _require(token not in (*document.participants, *document.waiting), f"{token} is in it already", document)
    return Step(transition, replace(document, waiting=(*document.waiting, token)))


def give_up(before: Rendezvous | None, token: str) -> Step | None:
    """Take this node out, wherever it is; None if it is nowhere. Before a round is final that ends the attempt for
    everybody, because ranks cannot be given back; a member of a final round goes by ending its keep-alive."""
    if before is None:
        return None
    if before.status is Status.FINAL:
        return _withdraw(before, token) if token in before.waiting else None
    takes_part = token in (before.creator, *before.participants)
    return _step(before, Event.ABANDON, None) if takes_part and before.status is not Status.CLOSED else None


def _withdraw(before: Rendezvous, token: str) -> Step:
    return _step(before, Event.WITHDRAW, replace(before, waiting=tuple(t for t in before.waiting if t != token)))


def break_(before: Rendezvous | None) -> Step:
    """End a final round that has lost a member."""
    return _step(before, Event.BREAK, None)


def close(before: Rendezvous | None) -> Step | None:
    """Tell all nodes not to take part again; None if they have been told already."""
    if before is not None and before.status is Status.CLOSED:
        return None
    return _step(before, Event.CLOSE, Rendezvous(Status.CLOSED))


def caller(document: Rendezvous, bounds: Bounds) -> str | None:
    """Who makes the last call; None while too few have joined."""
    return document.participants[bounds.least - 1] if len(document.participants) >= bounds.least else None


def transaction(
    keys: Keys, view: DocumentView, step: Step, lease: int, alive: tuple[KeepAlive, int] | None
) -> Transaction:
    """Write what `step` made of the document of `view`, if it is still the one that stands.

    A document that was deleted and made again has another revision, so that what was decided about the one is never
    written over the other.

    Args:
        lease: that the document is to be attached to.
        alive: what a step that confirms writes besides, and its lease.
    """
    stands = absent(keys.document) if not view.revision else Compare(keys.document, Field.MODIFIED, view.revision)
    return Transaction((stands,), tuple(_operations(keys, view, step, lease, alive)))


def _step(before: Rendezvous | None, event: Event, after: Rendezvous | None) -> Step:
    transition = _row(before, event)
    found = None if after is None else after.status
    if found is not transition.after:
        raise IllegalStep(f"expected {event.value} to lead to {transition.after}, found {found}")
    return Step(transition, after)


def _allowed(before: Rendezvous | None, event: Event) -> tuple[Transition, Rendezvous]:
    transition = _row(before, event)
    if before is None:
        raise IllegalStep(f"expected a document for {event.value}, found none")
    return transition, before


def _row(before: Rendezvous | None, event: Event) -> Transition:
    status = None if before is None else before.status
    transition = BY_CAUSE.get((status, event))
    if transition is None:
        where = "where there is no document" if status is None else f"in state {status.value}"
        raise IllegalStep(f"expected a step that the protocol knows, found {event.value} {where}")
    return transition


def _require(holds: bool, rule: str, found: Rendezvous) -> None:
    if not holds:
        raise IllegalStep(f"expected that {rule}, found {found}")


def _operations(
    keys: Keys, view: DocumentView, step: Step, lease: int, alive: tuple[KeepAlive, int] | None
) -> Iterator[Operation]:
    if step.after is None:
        yield Delete(keys.document)
        return
    yield Put(keys.document, to_bytes(step.after), lease)
    if Effect.KEEP_ALIVE in step.transition.effects:
        if alive is None:
            raise ValueError("expected what a step that confirms writes as its keep-alive, found none")
        rank = step.after.participants.index(step.after.confirmed[-1])
        yield Put(keys.alive(view.version, rank), alive[0].to_bytes(), alive[1])
