"""The nodes' shared state, which consists of the document and the nodes' keep-alives. The document is a single key that
nodes change by compare-and-swap. A view is one node's snapshot of the document and the keep-alives."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
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
    """The document's content. Nodes are identified by tokens. A node uses a new token for every attempt to join, so
    that it recognizes its own writes even if the reply was lost.

    Args:
        creator: the node that created the rendezvous; empty once a node has joined.
        participants: the nodes that have joined, in rank order.
        confirmed: participants that have confirmed that they are alive, in order of confirmation.
        waiting: nodes that arrived when the round was already final and are waiting for the next one.
    """

    status: Status
    creator: str = ""
    participants: tuple[str, ...] = ()
    confirmed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True)
class DocumentView:
    """A node's snapshot of the document and its keep-alives.

    Args:
        document: None if it does not exist.
        version: the revision at which the document was created, or 0 if there is no document. It identifies this
            rendezvous within the job. Each new rendezvous has a higher version, so no counter is needed.
        revision: the revision of the document's last write, which compare-and-swap checks.
        lease: ID of the lease to which the document is attached.
        alive: keep-alives of this version, by rank.
    """

    document: Rendezvous | None = None
    version: int = 0
    revision: int = 0
    lease: int = 0
    alive: Mapping[int, KeepAlive] = field(default_factory=dict)

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks of a final round whose keep-alives have expired or are invalid."""
        if self.document is None or self.document.status is not Status.FINAL:
            return ()
        return tuple(rank for rank in range(len(self.document.participants)) if rank not in self.alive)


@dataclass(frozen=True)
class KeepAlive:
    """A participant's record that it is alive. Rank 0 adds the address of the workers' store."""

    address: str = ""
    port: int = 0

    def to_bytes(self) -> bytes:
        """Encode this record as JSON."""
        return json.dumps([self.address, self.port]).encode()


def to_bytes(document: Rendezvous) -> bytes:
    """Encode a document as JSON."""
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
    """Decode a document.

    Raises:
        RendezvousStateError: `raw` is not a document, or it is a document that the protocol cannot produce.
    """
    try:
        return _checked(json.loads(raw))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RendezvousStateError(
            f"expected a rendezvous document of format {_FORMAT}, found {raw[:100]!r}; another program or version "
            "is using this prefix; set a different prefix for this job (etcd_prefix)"
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
        raise ValueError("duplicate name")
    return tuple(found)


def _is_name(text: str) -> bool:
    return len(text) <= _LONGEST_NAME and text.isprintable()


def _is_possible(document: Rendezvous) -> bool:
    """Return whether the protocol can produce this document. The functions in `steps` rely on this check."""
    joined, confirmed = set(document.participants), set(document.confirmed)
    if document.status is Status.SETUP:
        return bool(document.creator) and _is_name(document.creator) and not (joined | confirmed)
    if document.status is Status.FROZEN:
        return confirmed < joined
    if document.status is Status.FINAL:
        return bool(joined) and confirmed == joined and joined.isdisjoint(document.waiting)
    return not confirmed


def view_of(keys: Keys, pairs: Mapping[bytes, KeyValue], ignore: Ignore = lambda key, reason: None) -> DocumentView:
    """Build the view of these keys. Invalid records are passed to `ignore` with the reason, and treated as absent. The
    view keeps an invalid document's revision, so that a node can remove the document."""
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
    """Decode a keep-alive. Raises RendezvousStateError if it is invalid."""
    try:
        address, port = json.loads(raw if len(raw) <= _LONGEST_KEEP_ALIVE else b"")
        if not isinstance(address, str) or not _is_name(address) or type(port) is not int or not 0 <= port < 2**16:
            raise ValueError("address or port")
    except (ValueError, TypeError, RecursionError) as error:
        raise RendezvousStateError(f"expected an address and a port in a keep-alive, found {raw[:100]!r}") from error
    return KeepAlive(address, port)
