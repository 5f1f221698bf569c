"""Connectors for torch stores. One kind shares an existing store. The other kind opens more connections to the server
of an existing TCPStore."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from elastic_c10d.connection import TorchConnection, cut_unanswered, socket_of
from elastic_c10d.torch_store import distributed, innermost
from elastic_core.plugin import BackgroundCall, RendezvousConnectionError, unreachable_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_c10d.torch_store import Store
    from elastic_core.plugin import Duration, StoreConnector

READ_TIMEOUT: Duration = 60.0
CONNECT_TIMEOUT: Duration = 10.0
_PATIENT_TIMEOUT: Duration = 1.5  # torch retries a refused connection for this long, even after `close`


class SharedConnector:
    """Returns the same store to all callers. The store must be thread-safe, as FileStore and HashStore are."""

    grace: Duration = 0.0
    hosts = False

    def __init__(self, store: Store, where: str = "") -> None:
        self.where = where or type(store).__name__
        self._connection = TorchConnection(store, pushes=False, where=self.where)

    def connect(self, aside: bool = False) -> TorchConnection:
        return self._connection

    def close(self) -> None:
        """Do nothing, because the caller owns the store."""


class BorrowedTcpConnector:
    """Opens separate connections to the server of an existing TCPStore. The store object itself is not used, because
    its timeout belongs to its owner and is usually long. With that timeout, one read of a key that has just been
    deleted would block the node for minutes."""

    grace: Duration = 0.0
    hosts = False

    def __init__(self, store: Any, base: Any) -> None:
        self._store, self._base = store, base
        self._dialer = StoreDialer()
        self.where = f"{base.host}:{base.port}"

    def connect(self, aside: bool = False) -> TorchConnection:
        if self._store is self._base:
            return self._dialer.dial(self._base.host, self._base.port, self.where, CONNECT_TIMEOUT, patiently=aside)
        return self._dialer.run(self._store.clone, self._base.port, self.where, CONNECT_TIMEOUT)

    def close(self) -> None:
        self._dialer.close()


@dataclass(frozen=True)
class _Stuck:
    """A TCPStore constructor that has not returned yet, and the port that it connects to."""

    port: int
    attempt: BackgroundCall[Store]


class StoreDialer:
    """Creates TCPStore clients within a time limit. torch's constructor waits forever for a listener that does not
    answer. Each constructor therefore runs in a separate thread, unless the caller may wait indefinitely. If a
    constructor is stuck, the next call for the same address waits for it instead of starting another one.

    Args:
        read_timeout: seconds after which an unanswered operation fails.
    """

    def __init__(self, read_timeout: Duration = READ_TIMEOUT) -> None:
        self.stop = threading.Event()
        self._read_timeout = read_timeout
        self._stuck: dict[str, _Stuck] = {}
        self._called: list[int] = []
        self._waiting: set[BackgroundCall[Store]] = set()

    def dial(self, host: str, port: int, where: str, timeout: Duration, patiently: bool = False) -> TorchConnection:
        """Connect to the TCPStore at `host`, which should already be listening. If `patiently` is True, the wait
        for the listener's answer has no limit, but `close` can end it. Use this if the address has just answered.

        Raises:
            RendezvousConnectionError: `host` did not answer as a TCPStore in time, or `close` was called.
        """

        def make() -> Store:
            limit = timedelta(seconds=_PATIENT_TIMEOUT if patiently else timeout)
            store: Store = distributed().TCPStore(host, port, None, False, limit, wait_for_workers=False)
            return store

        return self._call(make, port, where) if patiently else self.run(make, port, where, timeout)

    def _call(self, make: Callable[[], Store], port: int, where: str) -> TorchConnection:
        self._called.append(port)
        try:
            if self.stop.is_set():
                raise RendezvousConnectionError(self._silence(where, 0.0))
            return self._finished(make(), port, where, watched=False)
        except RuntimeError as error:
            raise unreachable_error("connecting", where, error) from error
        finally:
            self._called.remove(port)

    def run(self, make: Callable[[], Store], port: int, where: str, timeout: Duration) -> TorchConnection:
        """Connect like `dial`, but create the store with `make`."""
        if self.stop.is_set():
            raise RendezvousConnectionError(self._silence(where, timeout))
        begun = self._stuck.pop(where, None) or _Stuck(port, BackgroundCall(make, "rendezvous-connect"))
        self._waiting.add(begun.attempt)
        if self.stop.is_set() or not begun.attempt.wait(timeout):
            self._stuck[where] = begun
            if self.stop.is_set():
                self.close()
            raise RendezvousConnectionError(self._silence(where, timeout))
        self._waiting.discard(begun.attempt)
        try:
            store = begun.attempt.result()
        except RuntimeError as error:
            raise unreachable_error("connecting", where, error) from error
        return self._finished(store, port, where, watched=True)

    def close(self) -> None:
        """Make current and future calls fail, and end stuck constructors."""
        self.stop.set()
        for attempt in tuple(self._waiting):
            attempt.interrupt()
        with contextlib.suppress(KeyError):  # empty; a caller may remove its own entry at the same time
            while True:
                cut_unanswered(self._stuck.popitem()[1].port)
        for port in tuple(self._called):
            cut_unanswered(port)

    def _finished(self, store: Any, port: int, where: str, watched: bool) -> TorchConnection:
        connection = TorchConnection(store, True, where, socket_of(store, port))
        store.set_timeout(timedelta(seconds=self._read_timeout))
        connection.bound(self._read_timeout, watched)
        return connection

    def _silence(self, where: str, timeout: Duration) -> str:
        if self.stop.is_set():
            return f"connecting to {where} was aborted, because this side was closed"
        return (
            f"a program listens at {where}, but does not answer as a TCPStore (waited {timeout:g} s); the port may be "
            "wrong, the program another kind of store (--rdzv-backend), or the store suspended"
        )


def as_connector(store: Store | StoreConnector) -> StoreConnector:
    """Return a connector for the store. If the argument is already a connector, return it unchanged."""
    if hasattr(store, "connect"):
        return cast("StoreConnector", store)
    base = innermost(store)
    if isinstance(base, distributed().TCPStore) and (store is base or hasattr(store, "clone")):
        return BorrowedTcpConnector(store, base)
    return SharedConnector(store)
