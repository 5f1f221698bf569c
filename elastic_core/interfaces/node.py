"""Descriptions of nodes, rounds and their members, and notices that a node must leave the job."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
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
        name: the node id, unique within the job. Users see it and pass it to `elastic drain`.
        host: the machine's host name. New nodes are ranked by host name in natural order (node7 before node66).
        role: the role of its workers.
        local_world_size: the number of workers, at least 1.
        rank_hint: the requested group rank (`--node-rank`); None if any rank will do.
        max_restarts: the maximum number of restarts after failures.
        labels: free-form labels, for users and rank policies.
        stop_timeout: how many seconds the node may take to stop its workers. The other nodes wait that long for a live
            node before they form a round without it.
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
    """A node that takes part in a round. Its group rank is its position among the round's members. Members are tuples
    because every node creates one for each node of the job, and tuples are cheap to create."""

    node: str
    host: str
    address: str
    role: str
    local_world_size: int


@dataclass(frozen=True)
class Round:
    """The description of a round on which all its members agree.

    Args:
        number: 1 for the first round, incremented by 1 for each further round.
        members: in the order of their group ranks.
        restart_count: the number of restarts after failures so far.
        reason: why the round formed at that moment.
        ended: how the previous round ended, as far as was known when this round formed. None for the first round, or if
            the handler does not track rounds.
    """

    number: int
    members: Sequence[Member]
    restart_count: int = 0
    reason: str = ""
    ended: Verdict | None = field(default=None, hash=False)


@dataclass(frozen=True)
class Candidate:
    """A future member of the next round, as a rank policy receives it.

    Args:
        node: the node's description.
        last_rank: the node's group rank in the last round; None for a node that was not a member.
    """

    node: Node
    last_rank: int | None


RankPolicy = Callable[[Sequence[Candidate]], Sequence[Candidate]]
"""A function that orders the next round's nodes, and thereby determines their group ranks. It receives the nodes in the
default order and returns the same objects in the new order. It must not have side effects. For each round, only one
node calls the function, from any thread."""


def generated_name(host: str) -> str:
    """Return a node name that is unique even among containers, which may share a host name and a process id."""
    return f"{host}:{os.getpid()}.{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Notice:
    """A notice that this node must have left the job by a certain time.

    Args:
        reason: why the node must leave, in a few words for users.
        at: the time by which the node must have left, in seconds since the epoch. If the time is None or in the past,
            the node leaves immediately, and its workers get their full time to stop.

    Raises:
        ValueError: the reason is empty, or the time is not a finite number.
    """

    reason: str
    at: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason.strip():
            raise ValueError(f"expected a reason for the notice, found {self.reason!r}")
        if self.at is not None and not (isinstance(self.at, (int, float)) and math.isfinite(self.at)):
            raise ValueError(f"expected the time of the notice in seconds since the epoch, found {self.at!r}")


Pause = Callable[["Duration"], bool]
"""A function that waits for the given number of seconds. When the agent ends, the function immediately returns false,
and its caller must return as well."""

Notices = Iterator[Notice | None]
"""The notices from one source. Each notice replaces the source's previous notice, and None withdraws that notice."""
