"""What the nodes share: the document, one value under one key that is written by compare-and-swap, and their
keep-alives; and what one node sees of them at one moment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.errors import RendezvousStateError
from elastic_etcd_legacy.table import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_etcd.client.values import KeyValue

    from elastic_etcd_legacy.settings import Keys

_FORMAT = 1


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
class View:
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
    """Raises RendezvousStateError when this is no such document."""
    try:
        return _checked(json.loads(raw))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RendezvousStateError(
            f"expected the document of a rendezvous, format {_FORMAT}, found {raw[:100]!r}; something else writes "
            "under this prefix, or another version does: give the job a prefix of its own (etcd_prefix)"
        ) from error


def _checked(shown: dict[str, Any]) -> Rendezvous:
    if shown["format"] != _FORMAT or not isinstance(shown["creator"], str):
        raise ValueError(shown["format"])
    names = (_names(shown[field]) for field in ("participants", "confirmed", "waiting"))
    return Rendezvous(Status(shown["status"]), shown["creator"], *names)


def _names(found: Any) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise TypeError(found)
    return tuple(found)


def view_of(keys: Keys, pairs: Mapping[bytes, KeyValue]) -> View:
    """The view that these keys make. Raises RendezvousStateError when one holds what is not ours."""
    pair = pairs.get(keys.document)
    if pair is None:
        return View()
    version = pair.create_revision
    document = from_bytes(pair.value)
    return View(document, version, pair.mod_revision, pair.lease, _alive(keys, pairs, version, document))


def _alive(keys: Keys, pairs: Mapping[bytes, KeyValue], version: int, document: Rendezvous) -> dict[int, KeepAlive]:
    if document.status not in (Status.FROZEN, Status.FINAL):
        return {}
    named = ((rank, keys.alive(version, rank)) for rank in range(len(document.participants)))
    return {rank: _keep_alive(pairs[key].value) for rank, key in named if key in pairs}


def _keep_alive(raw: bytes) -> KeepAlive:
    try:
        address, port = json.loads(raw)
        if not isinstance(address, str) or type(port) is not int:
            raise TypeError(raw)
    except (ValueError, TypeError, RecursionError) as error:
        raise RendezvousStateError(f"expected address and port in a keep-alive, found {raw[:100]!r}") from error
    return KeepAlive(address, port)
