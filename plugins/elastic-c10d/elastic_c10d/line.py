"""One thread's line to the store: connects when it is first used and after every fault, and can be cut from outside."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from elastic_c10d.faults import is_wait_timeout, unreachable
from elastic_core.errors import RendezvousConnectionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_c10d.connection import Connection
    from elastic_c10d.connector import Connector
    from elastic_c10d.torch_store import Store
    from elastic_core.clock import Duration

T = TypeVar("T")
_PIECE: Duration = 1.0  # of a wait that cannot be interrupted
_ASKING: tuple[Duration, Duration] = (0.005, 0.1)  # first and longest pause between questions, where nothing is pushed


class Line:
    """Args:
    connector: where connections come from.
    aside: this line only waits, beside a main one.
    greet: called with the store of every new connection before it is used otherwise.
    """

    def __init__(self, connector: Connector, aside: bool, greet: Callable[[Store], None]) -> None:
        self._connector = connector
        self._aside = aside
        self._greet = greet
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._closed = threading.Event()

    def use(self, doing: str, operation: Callable[[Store], T]) -> T:
        """Do something with the store. After a fault the connection is dropped, and the next call makes a new one.

        Raises:
            RendezvousConnectionError: the store cannot be reached, the operation broke off, or the line was closed.
        """
        with self._lock:
            try:
                return operation(self._connected().store)
            except RuntimeError as error:
                raise self._broken(doing, error) from error

    def wait_for(self, key: str, timeout: Duration) -> bool:
        """Block until the key exists, the line is closed, or `timeout` seconds have passed. Whether the key exists.
        Comes back from `close` at once, or within 1 s where torch does not show its socket.

        Raises: as `use`, except that a closed line is no fault.
        """
        return self._waited(lambda connection: self._wait(connection, key, timeout))

    def _waited(self, wait: Callable[[Connection], bool]) -> bool:
        with self._lock:
            try:
                return not self._closed.is_set() and wait(self._connected())
            except RendezvousConnectionError:
                if self._closed.is_set():
                    return False
                raise
            except RuntimeError as error:
                fault = self._broken("waiting", error)
                if self._closed.is_set():
                    return False
                raise fault from error

    def fetch(self, key: str, timeout: Duration) -> bytes | None:
        """As `wait_for`, with the value once the key exists, in the same operation."""
        values: list[bytes] = []
        if not self._waited(lambda connection: self._get(connection, key, timeout, values)):
            return None
        return values[0] if values else self.use("reading", lambda store: bytes(store.get(key)))

    def close(self) -> None:
        """Cut the line. Any thread."""
        self._closed.set()
        connection = self._connection
        if connection is not None:
            connection.abort()
        if self._lock.acquire(blocking=False):  # else whoever is at it finds it cut, and drops it
            try:
                self._drop()
            finally:
                self._lock.release()

    def _connected(self) -> Connection:
        if self._connection is None and not self._closed.is_set():
            self._connection = self._greeted(self._connector.connect(self._aside))
        if self._connection is None or self._closed.is_set():
            self._drop()
            raise RendezvousConnectionError(f"the connection to {self._connector.where} was closed by this side")
        return self._connection

    def _greeted(self, connection: Connection) -> Connection:
        try:
            self._greet(connection.store)
        except BaseException:
            connection.release()
            raise
        return connection

    def _broken(self, doing: str, error: RuntimeError) -> RendezvousConnectionError:
        self._drop()
        return unreachable(doing, self._connector.where, error)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.release()
            self._connection = None

    def _wait(self, connection: Connection, key: str, timeout: Duration) -> bool:
        deadline = time.monotonic() + timeout
        if not connection.pushes:
            return self._ask(connection.store, key, deadline)
        while not self._closed.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if _wait_once(connection.store, key, left if connection.socket is not None else min(left, _PIECE)):
                return True
        return False

    def _get(self, connection: Connection, key: str, timeout: Duration, values: list[bytes]) -> bool:
        """torch's `get` waits for the key as `wait` does. Without a socket to cut it could not be ended in time."""
        set_timeout = getattr(connection.store, "set_timeout", None)
        if not connection.pushes or connection.socket is None or set_timeout is None:
            return self._wait(connection, key, timeout)
        try:
            set_timeout(timedelta(seconds=max(timeout, 0.001)))
            values.append(bytes(connection.store.get(key)))
        except RuntimeError as error:
            if is_wait_timeout(error):
                return False
            raise
        return True

    def _ask(self, store: Store, key: str, deadline: float) -> bool:
        pause, longest = _ASKING
        while not self._closed.is_set():
            if store.check([key]):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._closed.wait(min(pause, left))
            pause = min(pause * 1.5, longest)
        return False


def _wait_once(store: Store, key: str, timeout: Duration) -> bool:
    try:
        store.wait([key], timedelta(seconds=max(timeout, 0.001)))
    except RuntimeError as error:
        if is_wait_timeout(error):
            return False
        raise
    return True
