"""The entry: what one node announces, under a key that nobody else writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_core.interfaces.node import Member

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.interfaces.node import Node


@dataclass(frozen=True)
class Entry:
    """A node that wants a round newer than `after`.

    Args:
        key: unique for every start of an agent: the node's name and an incarnation.
        node: the node's name.
        address, port: where the workers' store would be if this node became rank 0.
        after: the last round it was in; 0 before the first.
        done: the round in which all its workers succeeded; 0 for none.
    """

    key: str
    node: str
    host: str = ""
    address: str = ""
    port: int = 0
    role: str = "default"
    local_world_size: int = 1
    rank_hint: int | None = None
    max_restarts: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    after: int = 0
    done: int = 0

    @property
    def member(self) -> Member:
        """What a round says of this node."""
        return Member(self.node, self.host, self.address, self.role, self.local_world_size)


def entry_of(node: Node, key: str) -> Entry:
    """The entry of a node that has been in no round and has no place for a store yet."""
    return Entry(
        key=key,
        node=node.name,
        host=node.host,
        role=node.role,
        local_world_size=node.local_world_size,
        rank_hint=node.rank_hint,
        max_restarts=node.max_restarts,
        labels=dict(node.labels),
    )
