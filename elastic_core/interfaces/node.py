"""How a node describes itself to the others, and how a round describes its members."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.clock import Duration
    from elastic_core.interfaces.handler import Verdict


@dataclass(frozen=True)
class Node:
    """One node of the job, as its agent describes it.

    Args:
        name: the node id, unique among the nodes of the job. People see it, and `elastic drain` takes it.
        host: the machine's name. New nodes are ranked by it, in natural order (node7 before node66).
        role: the role of its workers.
        local_world_size: the number of workers it runs, at least 1.
        rank_hint: the group rank that it asks for (`--node-rank`); None for any.
        max_restarts: the number of failures of the job that lead to a restart.
        labels: anything else, for people and for policies.
        stop_timeout: seconds that it may take to stop its workers. While the node lives, the others wait so long before
            they form a round without it.
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
    """A node that takes part in a round; its group rank is its position among the round's members. It is a tuple
    because tuples are cheap, and every node makes one for each node of the job."""

    node: str
    host: str
    address: str
    role: str
    local_world_size: int


@dataclass(frozen=True)
class Round:
    """What all members of a round agree on.

    Args:
        number: grows by one from round to round; the first is 1.
        members: in the order of their group ranks.
        restart_count: the number of restarts used by failures so far; the same on every node.
        reason: why the round formed at that moment.
        ended: how the round before this one ended, as it was judged by then; None for the first, and from handlers that
            do not follow rounds.
    """

    number: int
    members: Sequence[Member]
    restart_count: int = 0
    reason: str = ""
    ended: Verdict | None = field(default=None, hash=False)


@dataclass(frozen=True)
class Candidate:
    """A node that is to be a member of the next round, for a rank policy.

    Args:
        node: its description; `stop_timeout` and `max_restarts` are its own.
        last_rank: its group rank in the last round; None for a newcomer.
    """

    node: Node
    last_rank: int | None


RankPolicy = Callable[[Sequence[Candidate]], Sequence[Candidate]]
"""Puts the nodes of the next round in the order of their group ranks. It receives them in the order that they would
have without it, and returns the same objects. It is pure; one node of the job calls it, in any thread, anew for each
round."""


def made_up_name(host: str) -> str:
    """A name that no other node has: containers often have one host name, and one process id."""
    return f"{host}:{os.getpid()}.{secrets.token_hex(4)}"
