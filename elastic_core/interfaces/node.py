"""What a node tells the others about itself, and what a round says of its members."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.clock import Duration


@dataclass(frozen=True)
class Node:
    """One node of the job, as its agent describes it.

    Args:
        name: the node id, unique among the nodes of the job; what people see and `elastic drain` takes.
        host: the machine's name; nodes without history are ranked by it, in natural order (node7 before node66).
        role: the role of its workers.
        local_world_size: how many workers it runs, at least 1.
        rank_hint: the group rank it would like to have (`--node-rank`); None for any.
        max_restarts: failures of the job that are forgiven.
        labels: anything else, for people and for policies.
        stop_timeout: seconds that it may take to stop its workers; while it lives, no round forms without it before.
    """

    name: str
    host: str = ""
    role: str = "default"
    local_world_size: int = 1
    rank_hint: int | None = None
    max_restarts: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    stop_timeout: Duration = 30.0


class Member(NamedTuple):
    """A node that takes part in a round; its group rank is its place among the round's members. (A tuple, because every
    node makes as many of them as there are nodes.)"""

    node: str
    host: str
    address: str
    role: str
    local_world_size: int


@dataclass(frozen=True)
class Round:
    """What all members of a round agree on.

    Args:
        number: grows by one from round to round, the first is 1.
        members: in the order of their group ranks.
        restart_count: failures of the job that were forgiven so far; the same on every node.
        reason: why it formed just then.
    """

    number: int
    members: Sequence[Member]
    restart_count: int = 0
    reason: str = ""
