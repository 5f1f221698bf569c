"""Ranks of workers: they follow from the members of a round, so that nobody has to be asked for them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.agent.spec import Worker
from elastic_core.errors import RendezvousStateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from elastic_core.agent.spec import WorkerSpec
    from elastic_core.interfaces.node import Member


def check_place(members: Sequence[Member], group_rank: int, group_world_size: int, spec: WorkerSpec) -> None:
    """Raises RendezvousStateError when the round is not of this size, or holds this node for another one."""
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

    Global ranks count through the workers of all members in the order of their group ranks, role ranks through those
    of members of the same role.
    """
    own = members[group_rank]
    same_role = [member for member in members if member.role == own.role]
    first = _workers(members[:group_rank])
    first_in_role = _workers(member for member in members[:group_rank] if member.role == own.role)
    world_size, role_world_size = _workers(members), _workers(same_role)
    return [
        Worker(local, first + local, first_in_role + local, world_size, role_world_size)
        for local in range(own.local_world_size)
    ]


def _workers(members: Iterable[Member]) -> int:
    return sum(member.local_world_size for member in members)
