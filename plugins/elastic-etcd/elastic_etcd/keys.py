"""Where a job keeps what in etcd.

    /<prefix>/<run id>/round/state     the state; its mod_revision is the fence
    /<prefix>/<run id>/round/lead      who leads, while its lease lives
    /<prefix>/<run id>/nodes/<key>     the entry of a node, while its lease lives
    /<prefix>/<run id>/store/          the stores of the rounds

Everybody watches `round/`, who leads watches `nodes/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from elastic_etcd.client.values import end_of


@dataclass(frozen=True)
class KeyRange:
    """All keys from `begin` up to before `end`."""

    begin: bytes
    end: bytes


class Keys:
    """Of one job. Names of jobs and nodes are quoted, so that no two share a key.

    Args:
        prefix: the first part of every key; may have several parts with slashes between them.
        run_id: the job.
    """

    def __init__(self, prefix: str, run_id: str) -> None:
        self.base = f"/{prefix.strip('/')}/{quote(run_id, safe='')}/"
        self.state = f"{self.base}round/state".encode()
        self.lead = f"{self.base}round/lead".encode()
        self.round = _below(f"{self.base}round/")
        self.nodes = _below(f"{self.base}nodes/")
        self.store = f"{self.base}store/"

    def node(self, key: str) -> bytes:
        """Of the node with this key."""
        return self.nodes.begin + quote(key, safe="").encode()

    def key_of(self, name: bytes) -> str:
        """The node whose entry has this name."""
        return unquote(name[len(self.nodes.begin) :].decode("utf-8", "replace"))


def _below(prefix: str) -> KeyRange:
    begin = prefix.encode()
    return KeyRange(begin, end_of(begin))
