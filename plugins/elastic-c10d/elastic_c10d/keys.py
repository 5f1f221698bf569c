"""The keys of one job in a store, and reading one that may be absent without blocking.

id        names this store's life: a store that was restarted empty gets another
s/<v>     version v of the state; written once, later replaced by a tombstone, never deleted
head      the newest version as a hint: it may lag
slots     how many slots of the log of announcements were taken
e/<n>     slot n of that log
b/<n>     the beats of the node whose first slot was n
base      no live announcement is in a slot before this one
lead      the leaders' beats
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_c10d.torch_store import Store


class Keys:
    """Args:
    run_id: the job.
    """

    def __init__(self, run_id: str) -> None:
        self._prefix = f"elastic/{run_id}/"
        self.id = self._prefix + "id"
        self.head = self._prefix + "head"
        self.slots = self._prefix + "slots"
        self.base = self._prefix + "base"
        self.lead = self._prefix + "lead"

    def state(self, version: int) -> str:
        return f"{self._prefix}s/{version}"

    def slot(self, number: int) -> str:
        return f"{self._prefix}e/{number}"

    def beats(self, first_slot: int) -> str:
        return f"{self._prefix}b/{first_slot}"


def peek(store: Store, key: str) -> bytes | None:
    """The value, or None if there is none. For keys that are never deleted: between the two operations one would be
    waited for. A compare_set that expects what is never there would do in one operation, but it wakes everybody who
    waits for the key, though nothing has changed."""
    return bytes(store.get(key)) if store.check([key]) else None


def compare_set(store: Store, key: str, expected: bytes, desired: bytes) -> bytes:
    """As the store's own: the value that stands afterwards, or what was expected where none does."""
    return bytes(store.compare_set(key, expected, desired))


def create(store: Store, key: str, value: bytes) -> bytes:
    """Write the value if the key is absent. Returns what stands afterwards."""
    return compare_set(store, key, b"", value)
