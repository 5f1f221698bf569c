"""The output pump: one thread that moves what the workers of a round write to files and console, line by line.

It has a thread of its own, because a console that blocks (a paused terminal, a full pipe) must hold up the workers that
write to it, as it would without us, and never the agent.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import os
import selectors
import threading
from typing import TYPE_CHECKING

from elastic_core.log import get_logger
from elastic_core.workers.process import wait_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.clock import Duration
    from elastic_core.workers.channel import Channel

_CHUNK = 64 * 1024
_LARGEST_PIPE = 1024 * 1024  # bytes; what one pipe can hold at most unless root raises the limit
_UNFINISHED_LINE_AFTER: Duration = 0.1  # seconds of quiet after which an unfinished line is shown
_LAST_MOMENT: Duration = 1.0  # seconds that `finish` grants a pump that is about to end


class Delivery(enum.Enum):
    """How the output ended. HELD: a process outside the workers' sessions still has a stream open; earlier output
    was delivered, and `cat` delivers the rest. STALLED: the console did not take the rest."""

    COMPLETE = "complete"
    HELD = "held"
    STALLED = "stalled"


class OutputPump:
    """Takes over the read ends of the pipes in `channels` (file descriptor -> channel) and closes them.

    Call `start`; when all writers have gone, `end`; when `done` has become readable, or the wait for it was long
    enough, `finish`. `busy` while something is on its way to the console or a file: for ever, if that takes no more.
    """

    def __init__(self, channels: Mapping[int, Channel]) -> None:
        self._channels = dict(channels)
        self._held = False
        self._faulty: set[int] = set()
        self._asked: collections.deque[threading.Event] = collections.deque()
        self._ending = False
        self.moved = 0
        self.busy = False
        with contextlib.ExitStack() as undo:  # file descriptors may run out at any of these
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._wake_reader, self._wake_writer = _pipe(undo)
            self.done, self._done_writer = _pipe(undo)
            for fd in (self._wake_reader, *self._channels):
                self._selector.register(fd, selectors.EVENT_READ)
            undo.pop_all()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)

    def start(self) -> None:
        """Begin to move output. Raises RuntimeError when the machine has no thread left."""
        self._thread.start()

    def catch_up(self, patience: Duration) -> bool:
        """Wait until all that is in the pipes now has been moved, at most `patience` seconds; whether it has."""
        if self._ending or not self._thread.is_alive():
            return True
        caught_up = threading.Event()
        self._asked.append(caught_up)
        try:
            os.write(self._wake_writer, b"!")
        except BrokenPipeError:
            return True  # every stream has ended
        return caught_up.wait(patience)

    def end(self) -> None:
        """Read what lies in the pipes, and no further: no process that writes now is ours. Idempotent."""
        if not self._ending:
            self._ending = True
            os.close(self._wake_writer)

    def finish(self) -> Delivery:
        """Release the pump; a pump that is stuck in the console is left to itself. Once, after `end`."""
        if self._thread.ident is None:  # it could not be started
            self._run()
        else:
            self._thread.join(_LAST_MOMENT)
        # And not whether the thread still lives: a machine that stalls may keep it from its very last step.
        delivered = wait_readable(self.done, 0)
        os.close(self.done)
        if not delivered:
            return Delivery.STALLED
        return Delivery.HELD if self._held else Delivery.COMPLETE

    def owned(self) -> list[int]:
        """The descriptors that are still open and the pump's."""
        return [*self._channels, self._wake_reader, self._done_writer]

    def _run(self) -> None:
        while self._channels and self._turn():
            pass
        for fd in list(self._channels):
            self._drain(fd)
        self._selector.close()
        os.close(self._wake_reader)
        self._answer()  # after that: a later request finds no reader, and no thread is left to wait for an answer
        os.close(self._done_writer)

    def _turn(self) -> bool:
        """One wait and its result; False when told to end."""
        waiting = any(channel.unfinished for channel in self._channels.values())
        ready = self._selector.select(_UNFINISHED_LINE_AFTER if waiting else None)
        if not ready:
            self._show_unfinished()
        fds = {key.fd for key, _ in ready}
        for fd in fds - {self._wake_reader}:
            self._read(fd)
        return self._wake_reader not in fds or self._woken()

    def _woken(self) -> bool:
        """The pump has to catch up or, when the pipe has no writer any more, to end."""
        if not os.read(self._wake_reader, _CHUNK):
            return False
        for fd in list(self._channels):
            self._take_what_is_there(fd)
        self._answer()
        return True

    def _answer(self) -> None:
        while self._asked:
            self._asked.popleft().set()

    def _read(self, fd: int) -> int:
        """Move one chunk; its length, 0 at the end of the stream."""
        data = os.read(fd, _CHUNK)
        self.moved += len(data)
        if data:
            self.busy = True
            channel = self._channels[fd]
            self._guarded(fd, lambda: channel.feed(data))
            self.busy = False
        else:
            self._end(fd)
        return len(data)

    def _drain(self, fd: int) -> None:
        """All writers have gone: move what they left."""
        if self._take_what_is_there(fd):
            self._held = True
            self._hand_over(fd)
            self._end(fd)

    def _hand_over(self, fd: int) -> None:
        """Hand the pipe to a background `cat`, so that a process in another session, such as an uploader, can still
        write after the agent exits, and does not get SIGPIPE. `cat` exits when that process closes the pipe."""
        with open(os.devnull, "wb") as null:
            destination = self._channels[fd].destination
            places = (fd, null.fileno() if destination is None else destination, null.fileno())
            actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(places)]
            environ = {"PATH": os.environ.get("PATH", os.defpath)}
            in_background = ["sh", "-c", "exec 3<&0; cat <&3 &"]
            try:
                shell = os.posix_spawnp("sh", in_background, environ, file_actions=actions, setsid=True, setsigmask=())
                os.waitpid(shell, 0)
            except (OSError, NotImplementedError) as error:
                reason = f"a process in another session still has a stream open, and sh cannot be run: {error}"
                get_logger().warning("output lost", reason=reason)

    def _take_what_is_there(self, fd: int) -> bool:
        """Move what is in the pipe: a pipe's content at most, however fast others write. False: the stream is over."""
        left = _LARGEST_PIPE
        while left > 0 and wait_readable(fd, 0):
            moved = self._read(fd)
            if not moved:
                return False
            left -= moved
        return True

    def _end(self, fd: int) -> None:
        self._selector.unregister(fd)
        self._guarded(fd, self._channels.pop(fd).close)
        os.close(fd)

    def _show_unfinished(self) -> None:
        for fd, channel in self._channels.items():
            if channel.unfinished:
                self._guarded(fd, channel.show_unfinished)

    def _guarded(self, fd: int, move: Callable[[], None]) -> None:
        """Go on reading after any error: a fault of ours may cost output, but must not make a worker wait for ever for
        a reader. Reported once for each stream."""
        try:
            move()
        except Exception as error:  # noqa: BLE001 - any fault at all
            if fd not in self._faulty:
                self._faulty.add(fd)
                reason = f"it could not be moved: {type(error).__name__}: {error}"
                get_logger().error("output lost", reason=reason, exc_info=error)


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for fd in ends:
        undo.callback(os.close, fd)
    return ends
