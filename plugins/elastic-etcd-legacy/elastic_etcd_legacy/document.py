"""What the nodes share: the document, one value under one key that is written by compare-and-swap, and their
keep-alives; and what one node sees of them at one moment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import RendezvousStateError
from elastic_etcd_legacy.table import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_etcd.client.values import KeyValue

    from elastic_etcd_legacy.settings import Keys

    Ignore = Callable[[bytes, str], None]

_FORMAT = 1
_LONGEST_NAME = 512
_LONGEST_KEEP_ALIVE = 4096  # bytes


@dataclass(frozen=True)
class Rendezvous:
    """What the nodes agree on. Nodes are named by tokens, unique for every attempt of a node to take part, so that a
    node recognises what it wrote though the answer was lost.

    Args:
        creator: who has made it, until somebody has joined.
        participants: a node's rank is its place here.
        confirmed: participants that have shown that they live, in the order in which they did.
        waiting: nodes that came when the round was final, and want to be in the next one.
    """

    status: Status
    creator: str = ""
    participants: tuple[str, ...] = ()
    confirmed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()

    @property
    def num_workers_waiting(self) -> int:
        """How many nodes wait for the next round."""
        return len(self.waiting)


@dataclass(frozen=True)
class DocumentView:
    """A moment.

    Args:
        document: None if there is none.
        version: names this rendezvous among all of the job: the revision that created its document. It only grows, and
            no counter has to be kept for it. 0 for none.
        revision: of the document's last write; what a compare-and-swap compares.
        lease: that the document is attached to.
        alive: keep-alives of this version, by rank.
    """

    document: Rendezvous | None = None
    version: int = 0
    revision: int = 0
    lease: int = 0
    alive: Mapping[int, KeepAlive] | None = None

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks of a final round whose keep-alives are gone."""
        if self.document is None or self.document.status is not Status.FINAL:
            return ()
        alive = self.alive or {}
        return tuple(rank for rank in range(len(self.document.participants)) if rank not in alive)


@dataclass(frozen=True)
class KeepAlive:
    """What a participant writes when it confirms: where the workers' store is if it has rank 0."""

    address: str = ""
    port: int = 0

    def to_bytes(self) -> bytes:
        """As JSON."""
        return json.dumps([self.address, self.port]).encode()


def to_bytes(document: Rendezvous) -> bytes:
    """As JSON."""
    shown = {
        "format": _FORMAT,
        "status": document.status.value,
        "creator": document.creator,
        "participants": document.participants,
        "confirmed": document.confirmed,
        "waiting": document.waiting,
    }
    return json.dumps(shown, separators=(",", ":")).encode()


def from_bytes(raw: bytes) -> Rendezvous:
    """Raises RendezvousStateError when this is no such document, or one that no step of the protocol leads to."""
    try:
        return _checked(json.loads(raw))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RendezvousStateError(
            f"expected the document of a rendezvous, format {_FORMAT}, found {raw[:100]!r}; something else writes "
            "under this prefix, or another version does: give the job a prefix of its own (etcd_prefix)"
        ) from error


def _checked(shown: dict[str, Any]) -> Rendezvous:
    if type(shown["format"]) is not int or shown["format"] != _FORMAT or not isinstance(shown["creator"], str):
        raise ValueError("format or creator")
    names = (_names(shown[field]) for field in ("participants", "confirmed", "waiting"))
    document = Rendezvous(Status(shown["status"]), shown["creator"], *names)
    if not _is_possible(document):
        raise ValueError("names")
    return document


def _names(found: Any) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(name, str) and _is_name(name) for name in found):
        raise TypeError("names")
    if len(set(found)) != len(found):
        raise ValueError("a name stands there twice")
    return tuple(found)


def _is_name(text: str) -> bool:
    """Whether it can be the name of a node, or an address of one."""
    return len(text) <= _LONGEST_NAME and text.isprintable()


def _is_possible(document: Rendezvous) -> bool:
    """Whether steps lead there: they rely on it."""
    there, confirmed = set(document.participants), set(document.confirmed)
    if document.status is Status.SETUP:
        return bool(document.creator) and _is_name(document.creator) and not (there | confirmed)
    if document.status is Status.FROZEN:
        return confirmed < there
    if document.status is Status.FINAL:
        return bool(there) and confirmed == there and there.isdisjoint(document.waiting)
    return not confirmed


def _unsaid(key: bytes, reason: str) -> None:
    """Nobody is told."""


def view_of(keys: Keys, pairs: Mapping[bytes, KeyValue], ignore: Ignore = _unsaid) -> DocumentView:
    """The view that these keys make. A record that is none of ours counts as absent, and `ignore` is called with its
    key and why. Of such a document the view has the revision, so that it can be removed."""
    pair = pairs.get(keys.document)
    if pair is None:
        return DocumentView()
    version = pair.create_revision
    try:
        document = from_bytes(pair.value)
    except RendezvousStateError as error:
        ignore(pair.key, str(error))
        return DocumentView(None, 0, pair.mod_revision)
    ranks = len(document.participants) if document.status in (Status.FROZEN, Status.FINAL) else 0
    return DocumentView(document, version, pair.mod_revision, pair.lease, _alive(keys, pairs, version, ranks, ignore))


def _alive(
    keys: Keys, pairs: Mapping[bytes, KeyValue], version: int, ranks: int, ignore: Ignore
) -> dict[int, KeepAlive]:
    found = {}
    for rank in range(ranks):
        pair = pairs.get(keys.alive(version, rank))
        if pair is not None:
            try:
                found[rank] = keep_alive_in(pair.value)
            except RendezvousStateError as error:
                ignore(pair.key, str(error))
    return found


def keep_alive_in(raw: bytes) -> KeepAlive:
    """Raises RendezvousStateError when this is none."""
    try:
        address, port = json.loads(raw if len(raw) <= _LONGEST_KEEP_ALIVE else b"")
        if not isinstance(address, str) or not _is_name(address) or type(port) is not int or not 0 <= port < 2**16:
            raise ValueError("address or port")
    except (ValueError, TypeError, RecursionError) as error:
        raise RendezvousStateError(f"expected address and port in a keep-alive, found {raw[:100]!r}") from error
    return KeepAlive(address, port)
