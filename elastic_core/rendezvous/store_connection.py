"""Connections to a store, the connectors that make them, and `ThreadConnection`, through which one thread uses a
store."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from elastic_core.clock import MISTAKES, SystemClock, later
from elastic_core.errors import ConfigurationError, ElasticError, Problem, RendezvousConnectionError
from elastic_core.rendezvous.handover import StoreMoved
from elastic_core.rendezvous.versions import EpochEnded, StoreMoving, is_wait_timeout, peek

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Backoff, Duration
    from elastic_core.interfaces.backend import Store

T = TypeVar("T")
_ABSENT_PATIENCE: Duration = 2.0  # longer than the store takes to answer
_PIECE: Duration = 1.0  # the length of the pieces into which a wait is divided, because it cannot be interrupted


class StoreConnection:
    """One connection to a store. Override its methods for a store that supports more, such as waits that can be
    interrupted.

    Args:
        store: the store's client, which one thread uses at a time.
        where: the store's location, for messages.
    """

    def __init__(self, store: Store, where: str) -> None:
        self.store: Any = store
        self.where = where

    def fetch(self, key: str, timeout: Duration, closed: threading.Event) -> bytes | None:
        """Wait for the key and return its value. Returns None after `timeout` seconds, soon after `closed` is set, or
        if the key has been deleted again."""
        clock = SystemClock()
        until = later(clock.now(), timeout)
        while not closed.is_set() and (left := until - clock.now()) > 0:
            try:
                self.store.wait([key], timedelta(seconds=max(min(left, _PIECE), 0.001)))
            except Exception as error:
                if not is_wait_timeout(error):
                    raise
            else:
                return peek(self.store, key)
        return None

    def asked_for(self, key: str, timeout: Duration, closed: threading.Event, pauses: Backoff) -> bytes | None:
        """Wait for the key like `fetch`, but poll it with these pauses, for a store whose `wait` cannot be used."""
        clock, asked = SystemClock(), 0
        until = later(clock.now(), timeout)
        while not closed.is_set():
            if (found := peek(self.store, key)) is not None:
                return found
            if (left := until - clock.now()) <= 0:
                break
            asked += 1
            closed.wait(min(pauses.pause(asked), left))
        return None

    def shorten_timeout(self, seconds: Duration) -> None:
        """Limit how long `multi_get` waits for a key that has just been deleted. Does nothing if the store lacks
        `multi_get` or torch's `set_timeout`."""
        if hasattr(self.store, "multi_get") and hasattr(self.store, "set_timeout"):
            self.store.set_timeout(timedelta(seconds=seconds))

    def abort(self) -> None:
        """If possible, make all operations fail immediately, even those that are blocked. Any thread may call this
        method. Idempotent."""

    def release(self) -> None:
        """Close the client. Idempotent."""
        close_client(self.store)


def close_client(client: object) -> None:
    """Close a store or a backend if it has a method `close`."""
    close = getattr(client, "close", None)
    if close is not None:
        close()


class StoreConnector(Protocol):
    """Makes connections to one store. Several threads call `connect`."""

    @property
    def where(self) -> str:
        """The store's location, for messages."""

    @property
    def hosts(self) -> bool:
        """Whether the store runs in this process and stops on `close`."""

    @property
    def grace(self) -> Duration:
        """See `RosterBackend.grace`."""

    def connect(self, aside: bool = False) -> StoreConnection:
        """Return a new connection. If `aside` is True, the connection is only for waiting. Raises
        RendezvousConnectionError if the attempt fails or the connector has been closed."""

    def close(self) -> None:
        """Make `connect` fail from now on. If this process hosts the store, stop the store. Idempotent."""


class FactoryConnector:
    """Connects to a store with clients that `make` creates. `make` may raise any error. Each thread that uses the store
    gets its own client."""

    hosts = False

    def __init__(self, make: Callable[[], Store], where: str, grace: Duration = 0.0) -> None:
        self._make = make
        self.where = where
        self.grace = grace

    def connect(self, aside: bool = False) -> StoreConnection:
        try:
            return StoreConnection(self._make(), self.where)
        except (ElasticError, ImportError, *MISTAKES):
            raise
        except Exception as error:
            raise unreachable_error("connecting", self.where, error) from error

    def close(self) -> None:
        """Do nothing, because callers release their connections."""


def unreachable_error(doing: str, where: str, error: BaseException) -> RendezvousConnectionError:
    """Return the error for a failed store operation, without torch's C++ stack trace. Raise it `from error`."""
    lines = str(error).strip().splitlines()
    said = lines[0].strip() if lines else type(error).__name__
    return RendezvousConnectionError(f"{doing} at {where} failed: {said}")


class ThreadConnection:
    """One thread's access to the store. It connects when it is first used, and reconnects after every fault. Other
    threads can interrupt it by closing the connection.

    Args:
        connector: makes the connections.
        aside: see `StoreConnector.connect`.
        on_connect: called with the store of every new connection before the store is used for anything else.
    """

    def __init__(self, connector: StoreConnector, aside: bool, on_connect: Callable[[Store], object]) -> None:
        self._connector = connector
        self._aside = aside
        self._on_connect = on_connect
        self._lock = threading.RLock()
        self._connection: StoreConnection | None = None
        self._closed = threading.Event()
        self._elsewhere = False

    def use(self, doing: str, operation: Callable[[Store], T]) -> T:
        """Call the operation with the store. After a fault, the next call makes a new connection. Raises
        RendezvousConnectionError if the store cannot be reached, the operation failed, or `close` was called."""
        with self._lock:
            return self._tried(doing, lambda connection: operation(connection.store))

    def fetch(self, key: str, timeout: Duration, stands: Callable[[], bool] = lambda: True) -> bytes | None:
        """Wait for the key and return its value. Returns None after `timeout` seconds, or if another thread closes the
        connection. After connecting, calls `stands`, and raises EpochEnded if `stands` returns False. Also raises the
        errors of `use`."""

        def waited(connection: StoreConnection) -> bytes | None:
            if not stands():
                raise EpochEnded
            return connection.fetch(key, timeout, self._closed)

        return self._unless_closed(waited)

    def look(self, operation: Callable[[Store], T]) -> T | None:
        """Call the operation like `use`, but return None if another thread has closed the connection."""
        return self._unless_closed(lambda connection: operation(connection.store))

    def _unless_closed(self, operation: Callable[[StoreConnection], T]) -> T | None:
        with self._lock:
            try:
                return None if self._closed.is_set() else self._tried("waiting", operation)
            except RendezvousConnectionError:
                if self._closed.is_set() or self._elsewhere:
                    return None
                raise

    def close(self) -> None:
        """Close the connection for good. Any thread may call this method."""
        self._closed.set()
        self._cut()

    def renew(self) -> None:
        """Close the connection because the store has moved. The next use reconnects, and a `fetch` that is waiting
        returns None. Any thread may call this method."""
        self._elsewhere = True
        self._cut()

    def _cut(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.abort()
        if self._lock.acquire(blocking=False):  # otherwise, the thread that uses the connection drops it
            try:
                self._drop()
            finally:
                self._lock.release()

    def _tried(self, doing: str, operation: Callable[[StoreConnection], T]) -> T:
        try:
            return operation(self._connected())
        except (ElasticError, EpochEnded, StoreMoving, StoreMoved):
            raise  # these errors prove nothing about the connection
        except Exception as error:
            self._drop()
            if isinstance(error, ImportError):  # retrying would not help
                needed = f"the store's client cannot be imported: {type(error).__name__}: {error}"
                raise ConfigurationError(Problem("--rdzv-backend", f"{needed}; repair the installation")) from error
            if isinstance(error, MISTAKES):  # a defect of the client, not an outage
                raise
            raise unreachable_error(doing, self._connector.where, error) from error
        finally:
            if self._closed.is_set():
                self._drop()

    def _connected(self) -> StoreConnection:
        if self._elsewhere:
            self._elsewhere = False
            self._drop()
        if self._connection is None and not self._closed.is_set():
            self._connection = self._connector.connect(self._aside)
            try:
                if not self._closed.is_set():  # otherwise, `close` did not see this connection
                    self._connection.shorten_timeout(_ABSENT_PATIENCE)
                    self._on_connect(self._connection.store)
            except BaseException:
                self._drop()
                raise
        if self._connection is None or self._closed.is_set():
            raise RendezvousConnectionError(f"the connection to {self._connector.where} was closed by this side")
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.release()
            self._connection = None
