"""A store of its own for every round, if the backend brings no better way: the same store, under another prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from elastic_core.interfaces.backend import RoundStores
from elastic_core.interfaces.handler import RendezvousStoreInfo
from elastic_core.support.sockets import PortReservation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from elastic_core.interfaces.store import Store


class PrefixedStore:
    """`interfaces.store.Store` over another one, of which it sees the keys with a prefix only."""

    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix = prefix
        self._store = store

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def get(self, key: str) -> bytes:
        return self._store.get(self._key(key))

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(self._key(key), value)

    def add(self, key: str, amount: int) -> int:
        return self._store.add(self._key(key), amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self._store.compare_set(self._key(key), expected, desired)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        names = [self._key(key) for key in keys]
        if timeout is None:
            self._store.wait(names)
        else:
            self._store.wait(names, timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return self._store.check([self._key(key) for key in keys])

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(self._key(key))

    def num_keys(self) -> int:
        """The number of keys in the whole store, since it cannot tell whose they are."""
        return self._store.num_keys()


class LateStore:
    """A store that is made when it is first used, and anew after `close`. Passes all on. Used from one thread."""

    def __init__(self, make: Callable[[], Store]) -> None:
        self._make = make
        self._made: Store | None = None

    @property
    def made(self) -> Store:
        """The store."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def close(self) -> None:
        """Let go of what was made, if anything was."""
        made, self._made = self._made, None
        close = getattr(made, "close", None)
        if close is not None:
            close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.made, name)


class PrefixedStores(RoundStores):
    """Rank 0's worker hosts the workers' store, on a port that its agent has reserved and holds.

    Args:
        address: the address that this node advertises; a function is asked when it is needed, since names may have to
            be looked up.
    """

    def __init__(self, store: Store, run_id: str, address: str | Callable[[], str]) -> None:
        self._store = store
        self._run_id = run_id
        self._address = address
        self._reservation: PortReservation | None = None

    @property
    def hosted_by_agent(self) -> bool:
        return False

    def reserve(self) -> RendezvousStoreInfo:
        fresh = PortReservation()  # while the one before is held: else it may be the same port again
        self.release()
        self._reservation = fresh
        return RendezvousStoreInfo(self._address if isinstance(self._address, str) else self._address(), fresh.port)

    def open(self, number: int, host: RendezvousStoreInfo, is_host: bool) -> Store:
        if not is_host:
            self.release()
        return PrefixedStore(f"elastic/{self._run_id}/{number}", self._store)

    def release(self) -> None:
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None


class MadeStores(PrefixedStores):
    """The same over a store that is made for every round, when it is first used: most jobs never use it.

    Attributes:
        late: that store.
    """

    def __init__(self, make: Callable[[], Store], run_id: str, address: str | Callable[[], str]) -> None:
        self.late = LateStore(make)
        super().__init__(cast("Store", self.late), run_id, address)

    def release(self) -> None:
        super().release()
        self.late.close()
