"""One member of the cluster, as this client sees it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from elastic_etcd.client.errors import EtcdClosed
from elastic_etcd.client.failures import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration
    from elastic_etcd.client.login import Metadata
    from elastic_etcd.client.messages import Method


class Member:
    """An endpoint and the channel to it, which is opened when it is first needed. Used from several threads.

    `answered`: it has given an answer since it was last found bad, so that what is sent now will hardly be in vain.
    `known_good`: it has ever given one. `fault`: what was wrong with it last; empty if nothing was.
    """

    def __init__(self, number: int, endpoint: str, connect: Callable[[str], Any]) -> None:
        self.number = number
        self.endpoint = endpoint
        self.answered = False
        self.known_good = False
        self.fault = ""
        self._connect = connect
        self._channel: Any = None
        self._calls: dict[str, Any] = {}  # by path: each is called in one form only
        self._closed = False
        self._lock = threading.Lock()

    @property
    def channel(self) -> Any:
        """The gRPC channel. Raises EtcdClosed, ConfigurationError (certificates that cannot be used)."""
        with self._lock:
            self._expect_open()
            if self._channel is None:
                self._channel = self._connect(self.endpoint)
            return self._channel

    def call(self, method: Method) -> Any:
        """The method on this member: `call(request, timeout=..., metadata=...)`."""
        found = self._calls.get(method.path)
        if found is None:
            found = self._calls[method.path] = method.on(self.channel)
        return found

    def ask(self, method: Method, request: Any, timeout: Duration, metadata: Metadata) -> Any:
        """The answer to one request, within `timeout` seconds. Raises Failure, EtcdClosed."""
        try:
            return self.call(method)(request, timeout=timeout, metadata=metadata)
        except _rpc_error() as error:
            self._expect_open()
            raise Failure.of(error) from None
        except ValueError:  # the channel is closed
            self._expect_open()
            raise

    def begin(self, method: Method, request: Any, timeout: Duration, metadata: Metadata) -> Any:
        """The same without waiting for the answer: a gRPC future. It waits for a connection. Raises EtcdClosed."""
        try:
            return self.call(method).future(request, timeout=timeout, metadata=metadata, wait_for_ready=True)
        except ValueError:
            self._expect_open()
            raise

    def _expect_open(self) -> None:
        if self._closed:
            raise EtcdClosed(f"the client of {self.endpoint} is closed")

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def found_well(self) -> None:
        """It answered."""
        self.answered, self.known_good, self.fault = True, True, ""

    def found_bad(self, fault: str) -> None:
        """It did not answer, or not as a member that works. Without a `fault`, the one before is as good."""
        self.answered, self.fault = False, fault or self.fault or "it cannot be reached"

    def close(self) -> None:
        """End the channel, and with it every call on it. Idempotent."""
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def _rpc_error() -> type[Exception]:
    """Looked for only when there is an error: this module is imported without gRPC."""
    import grpc

    error: type[Exception] = grpc.RpcError
    return error
