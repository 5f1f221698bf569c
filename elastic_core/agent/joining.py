"""Joining: how a node joins its next round, learns the round's members, and numbers its workers.

`next_rendezvous` runs in a separate thread, so that the agent can react to a signal while it blocks. Handlers written
for torchrun return a rank and a size, but not the other members. So each node introduces itself in the round's store,
under its rank, and reads the others' introductions: two small operations per member. Introductions are JSON, never
pickle, because a program that can write to the store must not be able to run code here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from elastic_core.agent.interface import Worker
from elastic_core.errors import RendezvousConnectionError, RendezvousStateError, RendezvousTimeoutError
from elastic_core.interfaces.handler import RendezvousInfo
from elastic_core.interfaces.node import Member, Round
from elastic_core.support.bounded import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.agent.event_queue import EventQueue
    from elastic_core.agent.interface import WorkerSpec
    from elastic_core.agent.reporter import Progress
    from elastic_core.clock import Clock
    from elastic_core.interfaces.handler import RendezvousHandler
    from elastic_core.interfaces.store import Store

_KEY = "elastic/member/{rank}"
_LONGEST = 4096  # bytes
_MOST = 2**31


class Introduction(NamedTuple):
    """A node's introduction to its peers: the role and number of its workers, the restarts of the job that it knows of,
    the number that it would give the round, its name and its host."""

    role: str
    local_world_size: int
    restart_count: int
    round: int
    node: str = ""
    host: str = ""

    @property
    def member(self) -> Member:
        """The node as a member of the round, without its address, which is unknown."""
        return Member(self.node, self.host, "", self.role, self.local_world_size)


def next_round(
    handler: RendezvousHandler, own: Introduction, events: EventQueue, clock: Clock, progress: Progress
) -> RendezvousInfo | None:
    """Wait for the next round, and return it with its members; None if a signal asks the agent to leave. Raises the
    handler's errors."""
    if events.signals:
        return None
    joining = BackgroundCall(lambda: _with_members(handler.next_rendezvous(), own), "rendezvous", events.wake)
    while True:
        events.wait((), progress.look(clock.now()))
        if events.signals:
            return None
        if joining.wait(0):
            return joining.result()


def _with_members(info: RendezvousInfo, own: Introduction) -> RendezvousInfo:
    """Add the members if the handler returned none, as handlers written for torchrun do."""
    formed: Round | None = getattr(info, "formed", None)
    if formed is None:
        formed = exchange_introductions(info.store, info.rank, info.world_size, own)
        if info.world_size == 1:
            where = info.bootstrap_store_info
            formed = replace(formed, members=(own.member._replace(address=where.master_addr if where else ""),))
    return RendezvousInfo(info.store, info.rank, info.world_size, info.bootstrap_store_info, formed)


def exchange_introductions(store: Store, rank: int, world_size: int, own: Introduction) -> Round:
    """The round as all its members see it, with the highest restart count and number that any of them knows. A single
    node does not use the store. Blocks for as long as the store waits for a key.

    Raises:
        RendezvousTimeoutError: a member has not written in time.
        RendezvousConnectionError: the store cannot be reached.
        RendezvousStateError: a member's introduction cannot be read.
    """
    if world_size > 1:
        store.set(_KEY.format(rank=rank), json.dumps(own))
    nodes = [own if other == rank else _read(store, other) for other in range(world_size)]
    members = tuple(node.member for node in nodes)
    return Round(max(node.round for node in nodes), members, max(node.restart_count for node in nodes))


def _read(store: Store, rank: int) -> Introduction:
    try:
        raw = store.get(_KEY.format(rank=rank))
    except TimeoutError as error:
        raise RendezvousTimeoutError(f"the node with rank {rank} has not introduced itself in time: {error}") from error
    except Exception as error:
        message = f"the introduction of the node with rank {rank} cannot be read from the round's store: {error}"
        raise RendezvousConnectionError(message) from error
    try:
        return _checked(*json.loads(raw if len(raw) <= _LONGEST else b""))
    except (ValueError, TypeError, RecursionError) as error:
        message = f"expected an introduction of the node with rank {rank}, found {raw[:100]!r}"
        raise RendezvousStateError(f"{message}; let all nodes run the same version") from error


def _checked(role: Any, workers: Any, restarts: Any, number: Any, node: Any, host: Any) -> Introduction:
    counts = (workers, restarts, number)
    whole = all(type(count) is int and 0 <= count < _MOST for count in counts)
    if not whole or not all(isinstance(text, str) for text in (role, node, host)):
        raise ValueError(counts)
    return Introduction(role, workers, restarts, number, node, host)


def check_place(members: Sequence[Member], group_rank: int, group_world_size: int, spec: WorkerSpec) -> None:
    """Raise RendezvousStateError if the round has another size, or another node in this node's place."""
    own = members[group_rank] if 0 <= group_rank < len(members) == group_world_size else None
    if own is None or (own.role, own.local_world_size) != (spec.role, spec.local_world_size):
        found = ", ".join(f"{member.local_world_size} of {member.role!r}" for member in members) or "none"
        raise RendezvousStateError(
            f"expected a round of {group_world_size} node(s), of which the one with rank {group_rank} has "
            f"{spec.local_world_size} worker(s) of role {spec.role!r}; found nodes with {found}; "
            "look whether two nodes have the same id"
        )


def ranked_workers(members: Sequence[Member], group_rank: int) -> list[Worker]:
    """The workers of the member with rank `group_rank`, by local rank.

    Global ranks number the workers of all members in the order of their group ranks; role ranks number those of members
    with the same role. So every node can compute them. The loop visits each member only once, because a large round
    builds a new object for each access to a member.
    """
    own = members[group_rank]
    first = first_in_role = world_size = role_world_size = 0
    for rank, member in enumerate(members):
        if rank == group_rank:
            first, first_in_role = world_size, role_world_size
        world_size += member.local_world_size
        role_world_size += member.local_world_size if member.role == own.role else 0
    return [
        Worker(local, first + local, first_in_role + local, world_size, role_world_size)
        for local in range(own.local_world_size)
    ]
