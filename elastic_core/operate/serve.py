"""`elastic serve`: hosts a rendezvous store until a signal stops the process."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from elastic_core.interfaces.backend import StoreServer


_ENDING = (signal.SIGTERM, signal.SIGINT)


def serve(server: StoreServer) -> None:
    """Run the server until SIGTERM or SIGINT arrives. Must be called in the main thread.

    Raises:
        ConfigurationError: the endpoint is not an address of this machine, or its port is in use.
    """
    with _noting() as signals:  # installed first, so that a signal cannot interrupt the start
        server.start()
        try:
            get_logger().info("store served", endpoint=server.endpoint)
            received = _next(signals)
            get_logger().info("store closed", signal=received.name)
        finally:
            server.stop()


@contextlib.contextmanager
def _noting() -> Iterator[int]:
    """Yield a file descriptor that delivers the number of each received signal as one byte. A Python signal handler
    would not run while the main thread is waiting."""
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
    """Do nothing, because the byte in the pipe already reports the signal."""


def _next(signals: int) -> signal.Signals:
    while (number := os.read(signals, 1)[0]) not in _ENDING:
        pass
    return signal.Signals(number)


def serving_endpoint(text: str) -> str:
    """Convert `[HOST:]PORT` to `HOST:PORT`. Without a host, the store is served on all addresses."""
    port = text.strip().removeprefix(":")
    return f"0.0.0.0:{port}" if port.isdigit() else text.strip()
