"""Roll call: how the nodes of a round learn of each other when the handler does not say who they are.

Handlers written for torchrun give a rank and a size. So each node puts what the others have to know under its rank
into the round's store, and reads theirs: two small operations for each member. JSON, never pickle: whoever reaches the
store must not be able to run code here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError, RendezvousTimeoutError
from elastic_core.interfaces.node import Member, Round

if TYPE_CHECKING:
    from elastic_core.interfaces.store import Store

_KEY = "elastic/member/{rank}"


@dataclass(frozen=True)
class Own:
    """What this node tells: the role and number of its workers, the failures of the job that it knows of, and the
    number that the round would have for it."""

    role: str
    local_world_size: int
    restart_count: int
    round: int


def call_roll(store: Store, rank: int, world_size: int, own: Own) -> Round:
    """The round as all its members see it. The restart count is the highest that one of them knows, and so is the
    number. A node that is alone asks nobody. Blocks for as long as the store waits for a key.

    Raises:
        RendezvousTimeoutError: a member has not told in time.
        RendezvousConnectionError: the store cannot be reached.
        RendezvousStateError: what a member told cannot be read.
    """
    if world_size == 1:
        return Round(own.round, (_member(own),), own.restart_count)
    store.set(_KEY.format(rank=rank), json.dumps([own.role, own.local_world_size, own.restart_count, own.round]))
    told = [own if other == rank else _read(store, other) for other in range(world_size)]
    return Round(
        max(node.round for node in told),
        tuple(_member(node) for node in told),
        max(node.restart_count for node in told),
    )


def _member(node: Own) -> Member:
    return Member("", "", "", node.role, node.local_world_size)


def _read(store: Store, rank: int) -> Own:
    try:
        raw = store.get(_KEY.format(rank=rank))
    except TimeoutError as error:
        raise RendezvousTimeoutError(f"expected the node with rank {rank} to tell its role: {error}") from error
    except Exception as error:
        message = f"expected the node with rank {rank} to tell its role through the round's store, found: {error}"
        raise RendezvousConnectionError(message) from error
    return _parsed(raw, rank)


def _parsed(raw: bytes, rank: int) -> Own:
    try:
        return _checked(*json.loads(raw))
    except (ValueError, TypeError, RecursionError) as error:
        message = f"expected the role and the number of workers of the node with rank {rank}, found {raw[:100]!r}"
        raise RendezvousStateError(f"{message}; let all nodes run the same version") from error


def _checked(role: Any, local_world_size: Any, restart_count: Any, round_: Any) -> Own:
    numbers = (local_world_size, restart_count, round_)
    if not isinstance(role, str) or not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(numbers)
    return Own(role, local_world_size, restart_count, round_)
