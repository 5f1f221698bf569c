"""`elastic serve`: the store in a process of its own, until it is asked to end."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from elastic_core.compat import choices
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.log import get_logger
from elastic_core.operate.commands import ROOM
from elastic_core.operate.target import named_backends

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType
    from typing import Any

    from elastic_core.config import NodeRange
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.interfaces.store import StoreServer


_ENDING = (signal.SIGTERM, signal.SIGINT)


def serve(server: StoreServer) -> None:
    """Start the server, and stop it at SIGTERM or SIGINT. In the main thread.

    Raises:
        ConfigurationError: the endpoint is not an address of this machine, or its port is taken.
    """
    with _noting() as signals:  # before the start, so that no signal finds the server half made
        server.start()
        try:
            get_logger().info("store served", endpoint=server.endpoint)
            received = _next(signals)
            get_logger().info("store served no more", signal=received.name)
        finally:
            server.stop()


@contextlib.contextmanager
def _noting() -> Iterator[int]:
    """A descriptor from which the numbers of signals can be read, a byte each. Python writes it as soon as the signal
    comes. A handler in Python would run between two steps of the main thread, which takes none while it waits."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = {number: signal.signal(number, _ignore) for number in _ENDING}
    others = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(others)
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)
        os.close(reader)
        os.close(writer)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """The byte is enough."""


def _next(signals: int) -> signal.Signals:
    """Wait for the first signal that asks for the end."""
    while (number := os.read(signals, 1)[0]) not in _ENDING:
        pass
    return signal.Signals(number)


def server_of(backend: str, endpoint: str, nodes: int, manager: PluginManager) -> StoreServer:
    """The backend's store, not started yet. Raises ConfigurationError if no plugin brings the backend, or it has no
    store to serve."""
    record = manager.select(RendezvousBackendRecord, backend)
    if record.serve is None:
        able = named_backends(manager, lambda other: other.serve is not None)
        raise ConfigurationError(
            Problem("--rdzv-backend", f"expected a backend whose store can be served ({able}), found {backend!r}")
        )
    return record.serve(endpoint, nodes)


def backend_to_serve(values: Mapping[str, Any]) -> str:
    """The backend whose store is to be served."""
    return str(values["rdzv_backend"] or choices.BACKEND)


def room_for(nodes: NodeRange) -> int:
    """How many nodes a store should have room for."""
    return max(nodes.max, ROOM)


def serving_endpoint(text: str) -> str:
    """`[HOST:]PORT` as `HOST:PORT`; without a host, on all addresses."""
    port = text.strip().removeprefix(":")
    return f"0.0.0.0:{port}" if port.isdigit() else text.strip()
