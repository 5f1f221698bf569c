"""A backend whose states and entries are signed: for one that does not sign by itself. A state or entry stands in the
place of an older one there, so what was signed before and is put back passes for the newest."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from elastic_core.interfaces.backend import Announced, RosterBackend, SpoiltStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.clock import Duration
    from elastic_core.interfaces.backend import Seal, Token

T = TypeVar("T")
_STATE = "state"


class SignedBackend(RosterBackend):
    """See above.

    Args:
        backend: becomes this one's, which closes it.
    """

    def __init__(self, backend: RosterBackend, seal: Seal) -> None:
        self._backend = backend
        self._seal = seal
        self._opened: dict[tuple[str, bytes], bytes | None] = {}

    @property
    def name(self) -> str:
        return self._backend.name

    def get_state(self) -> tuple[bytes, Token] | None:
        found = _signed(self._backend.get_state)
        return None if found is None else (self._seal.state(_STATE, *found), found[1])

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        found = _signed(lambda: self._backend.set_state(self._seal.sealed(_STATE, state), token))
        return None if found is None else (self._seal.state(_STATE, *found[:2]), *found[1:])

    def announce(self, key: str, entry: bytes) -> int:
        return self._backend.announce(key, self._seal.sealed(_entry(key), entry))

    def withdraw(self, key: str) -> None:
        self._backend.withdraw(key)

    def beat(self, key: str, leading: bool, look: bool) -> int | None:
        return self._backend.beat(key, leading, look)

    def roster(self) -> tuple[Announced, ...]:
        found = self._backend.roster()
        known, self._opened = self._opened, {}
        for item in found:
            place = (item.key, item.entry)
            self._opened[place] = known[place] if place in known else self._seal.opened(_entry(item.key), item.entry)
        opened = ((item, self._opened[item.key, item.entry]) for item in found)
        return tuple(Announced(item.key, entry, item.beats) for item, entry in opened if entry is not None)

    def wait_for_state(self, token: Token | None, timeout: Duration) -> bool:
        return self._backend.wait_for_state(token, timeout)

    def wait_for_roster(self, timeout: Duration, more: int = 1) -> bool:
        return self._backend.wait_for_roster(timeout, more)

    @property
    def vacant(self) -> bool:
        return self._backend.vacant

    @property
    def lease_ttl(self) -> Duration | None:
        return self._backend.lease_ttl

    @property
    def grace(self) -> Duration:
        return self._backend.grace

    @property
    def hosts_store(self) -> bool:
        return self._backend.hosts_store

    def hand_over(self, heirs: Sequence[str], timeout: Duration) -> bool:
        return self._backend.hand_over(heirs, timeout)

    def store_members(self) -> Sequence[str]:
        return self._backend.store_members()

    def close(self) -> None:
        self._backend.close()


def _signed(call: Callable[[], T]) -> T:
    """What the backend itself takes for no state is none of other nodes."""
    try:
        return call()
    except SpoiltStateError as error:
        error.others = False
        raise


def _entry(key: str) -> str:
    return f"entry/{key}"
