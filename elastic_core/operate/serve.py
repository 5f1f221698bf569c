"""`elastic serve`: the store, in a process of its own, until somebody asks it to end."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from elastic_core.interfaces.server import StoreServer


_ENDING = (signal.SIGTERM, signal.SIGINT)


def serve(server: StoreServer) -> None:
    """Start the server, and stop it at SIGTERM or SIGINT. In the main thread.

    Raises:
        ConfigurationError: the endpoint is not this machine's, or its port is taken.
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
    """Where the numbers of signals can be read from now on, a byte each. Python writes them in the moment in which they
    come; a handler in Python would have to wait for its turn, which never comes while the main thread waits for it."""
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
    """Wait for the first that asks for the end."""
    while (number := os.read(signals, 1)[0]) not in _ENDING:
        pass
    return signal.Signals(number)
