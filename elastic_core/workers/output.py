"""The output pump: one thread that moves what the workers of a round write to files and console, line by line.

A thread of its own, because a console that blocks (a paused terminal, a full pipe) must hold up the workers that
write to it, as it would without us, and never the agent.
"""

from __future__ import annotations

import os
import selectors
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.clock import Duration
    from elastic_core.workers.channel import Channel

_CHUNK = 64 * 1024
_UNFINISHED_LINE_AFTER: Duration = 0.1  # seconds of quiet after which an unfinished line is shown


class OutputPump:
    """Takes over the read ends of the pipes in `channels` (file descriptor -> channel) and closes them."""

    def __init__(self, channels: Mapping[int, Channel]) -> None:
        self._channels = dict(channels)
        self._moved = 0
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        for fd in self._channels:
            self._selector.register(fd, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)

    def start(self) -> None:
        """Begin to move output."""
        self._thread.start()

    def finish(self, timeout: Duration) -> bool:
        """Wait until every stream has ended. As long as bytes still move, the wait goes on; after `timeout` seconds
        without any, give up on the streams that somebody holds open. False when something was given up."""
        moved = -1
        while self._thread.is_alive() and moved != self._moved:
            moved = self._moved
            self._thread.join(timeout)
        complete = not self._thread.is_alive()
        os.close(self._wake_writer)
        self._thread.join(timeout)
        return complete

    def _run(self) -> None:
        while self._channels and self._turn():
            pass
        for fd in list(self._channels):
            self._end(fd)
        self._selector.close()
        os.close(self._wake_reader)

    def _turn(self) -> bool:
        """One wait and what came of it; False when told to give up."""
        waiting = any(channel.unfinished for channel in self._channels.values())
        ready = self._selector.select(_UNFINISHED_LINE_AFTER if waiting else None)
        if not ready:
            self._show_unfinished()
        fds = {key.fd for key, _ in ready}
        for fd in fds - {self._wake_reader}:  # even when told to give up: what lies in a pipe is not lost
            self._read(fd)
        return self._wake_reader not in fds

    def _read(self, fd: int) -> None:
        data = os.read(fd, _CHUNK)
        self._moved += len(data)
        if data:
            self._channels[fd].feed(data)
        else:
            self._end(fd)

    def _end(self, fd: int) -> None:
        self._selector.unregister(fd)
        self._channels.pop(fd).close()
        os.close(fd)

    def _show_unfinished(self) -> None:
        for channel in self._channels.values():
            if channel.unfinished:
                channel.show_unfinished()
