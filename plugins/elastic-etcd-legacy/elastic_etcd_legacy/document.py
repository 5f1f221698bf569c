"""The document that all nodes share: one value under one key, written by compare-and-swap."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from elastic_core.errors import RendezvousStateError
from elastic_etcd_legacy.table import Status

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
