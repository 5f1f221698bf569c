"""`elastic serve`: the store, in a process of its own, until somebody asks it to end."""

from __future__ import annotations

import contextlib
import signal
from queue import SimpleQueue
from typing import TYPE_CHECKING

from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from elastic_core.interfaces.server import StoreServer


_ENDING = (signal.SIGTERM, signal.SIGINT)


def serve(server: StoreServer) -> None:
    """Start the server, and stop it at SIGTERM or SIGINT. In the main thread.

    Raises:
        ConfigurationError: the endpoint is not this machine's, or its port is taken.
    """
    # Not an Event: a handler that interrupts the wait for one at its beginning would wait for the lock held there.
    asked: SimpleQueue[int] = SimpleQueue()

    def end(number: int, _frame: FrameType | None) -> None:
        asked.put(number)

    with _handling(end):  # before the start, so that no signal finds the server half made
        server.start()
        try:
            get_logger().info("store served", endpoint=server.endpoint)
            received = asked.get()
            get_logger().info("store served no more", signal=signal.Signals(received).name)
        finally:
            server.stop()


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)
