"""The output of one round: the workers' pipes and log files, and the pump that forwards output line by line.

The pump is a separate thread. A blocked console (a paused terminal, a full pipe) must hold up the workers that write to
it, as it would without an agent. It must never hold up the agent."""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import secrets
import selectors
import threading
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.log import get_logger
from elastic_core.support import files
from elastic_core.support.processes import drop_in_forks
from elastic_core.workers.channel import Channel, ConsoleSink, FileSink, OwnFile, TerminalLine
from elastic_core.workers.process import cannot_start, remedy, start_thread, wait_readable
from elastic_core.workers.streams import Stream, StreamPlan, plan_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from elastic_core.clock import Duration
    from elastic_core.interfaces.workers import RoundPlan
    from elastic_core.workers.streams import OutputPolicy, Placement

FULL = (errno.ENOSPC, errno.EDQUOT)
_CHUNK = 64 * 1024
_LARGEST_PIPE = 1024 * 1024  # bytes; the largest capacity of a pipe unless root raises the limit
_UNFINISHED_LINE_AFTER: Duration = 0.1  # seconds without output after which an unfinished line is shown
_LAST_MOMENT: Duration = 1.0  # seconds for which `finish` waits for a pump that is about to end


class OutputPump:
    """A thread that moves output from pipes to channels, and closes both when the output ends. Call `start` first,
    `end` when all writers have ended, and `finish` when `done` is readable or too much time has passed.

    Args:
        channels: maps the read end of each pipe to its channel.

    Attributes:
        busy: whether output is being written to the console or a file. Stays true while that write is blocked.
    """

    def __init__(self, channels: Mapping[int, Channel]) -> None:
        self._channels = dict(channels)
        self._faulty: set[int] = set()
        self._asked: collections.deque[threading.Event] = collections.deque()
        self._ending = False
        self.moved = 0
        self.busy = False
        with contextlib.ExitStack() as undo:  # file descriptors may run out at any of these steps
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._wake_reader, self._wake_writer = _pipe(undo)
            self.done, self._done_writer = _pipe(undo)
            for fd in (self._wake_reader, *self._channels):
                self._selector.register(fd, selectors.EVENT_READ)
            undo.pop_all()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)

    def start(self) -> None:
        """Start moving output. Raises OSError if no thread can be started."""
        start_thread(self._thread)

    def catch_up(self, patience: Duration) -> bool:
        """Wait until all that is in the pipes now has been moved, for at most `patience` seconds. Returns whether it
        has been moved."""
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
        """Make the pump forward the remaining output and stop. Call this when no workers are left. Idempotent."""
        if not self._ending:
            self._ending = True
            os.close(self._wake_writer)

    def finish(self) -> bool:
        """Release the pump, or abandon it if the console blocks it. Call this once, after `end`. Returns whether all
        output has been delivered or left to a background `cat` (see `_hand_over`)."""
        if self._thread.ident is None:  # the thread could not be started
            self._run()
        else:
            self._thread.join(_LAST_MOMENT)
        # Do not check whether the thread is alive: on a slow machine, it may not have completed its very last step.
        delivered = wait_readable(self.done, 0)
        os.close(self.done)
        return delivered

    def owned(self) -> list[int]:
        """Return the pump's descriptors, of which no other process may keep copies."""
        wake = [self._wake_reader] if self._ending else [self._wake_reader, self._wake_writer]
        return [*self._channels, *wake, self._done_writer]

    def _run(self) -> None:
        while self._channels and self._turn():
            pass
        # Do not wait for the ends of the streams, because a process outside the workers' sessions may keep them open.
        for fd in list(self._channels):
            if self._take_what_is_there(fd):
                self._hand_over(fd)
                self._end(fd)
        self._selector.close()
        os.close(self._wake_reader)
        self._answer()  # after the close, so that later requests fail instead of waiting forever
        os.close(self._done_writer)

    def _turn(self) -> bool:
        """Wait once, and handle what has arrived. Returns false if the pump must end."""
        unfinished = {fd: channel for fd, channel in self._channels.items() if channel.unfinished}
        ready = self._selector.select(_UNFINISHED_LINE_AFTER if unfinished else None)
        if not ready:
            for fd, channel in unfinished.items():
                self._guarded(fd, channel.show_unfinished)
        fds = {key.fd for key, _ in ready}
        for fd in fds - {self._wake_reader}:
            self._read(fd)
        return self._wake_reader not in fds or self._woken()

    def _woken(self) -> bool:
        """Handle a request from `catch_up`. Returns false if the wake pipe is closed, so the pump must end."""
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
        """Move one chunk of output. Returns its length, or 0 at the end of the stream."""
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

    def _hand_over(self, fd: int) -> None:
        """Hand the pipe to a background `cat`, which exits when the last writer closes the pipe. A process in another
        session, such as an uploader, can then keep writing without SIGPIPE after the agent exits."""
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
                reason = f"a process in another session still has a stream open, but sh cannot be run: {error}"
                get_logger().warning("output lost", reason=reason)

    def _take_what_is_there(self, fd: int) -> bool:
        """Move the output that is in the pipe now, but not all that is added. Returns false at the stream's end."""
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

    def _guarded(self, fd: int, move: Callable[[], None]) -> None:
        """Call `move`, and continue after any error. A bug may lose output, but must not leave a worker's pipe without
        a reader. Only the first error of each stream is logged."""
        try:
            move()
        except Exception as error:  # noqa: BLE001 - any fault at all
            if fd not in self._faulty:
                self._faulty.add(fd)
                reason = f"the output could not be moved: {type(error).__name__}: {error}"
                get_logger().error("output lost", reason=reason, exc_info=error)


class RoundOutput:
    """The output of one round. Create it before the workers start, and give each worker the descriptors from `stdio`.
    Call `begin` when all workers have started, and `finish` at the end.

    Raises:
        ConfigurationError: a log file cannot be opened, or a limit on open files is reached.
    """

    def __init__(self, plan: RoundPlan, policy: OutputPolicy, folder: Path, placement: Placement | None = None) -> None:
        self._consoles = {stream: ConsoleSink(int(stream)) for stream in Stream}
        self._screen = TerminalLine()
        self._filtered: dict[Path, FileSink] = {}
        self._channels: dict[int, Channel] = {}
        self._ends: dict[tuple[int, Stream], int] = {}
        self._write_ends: list[int] = []  # the pipes among `_ends`
        self._sources: dict[tuple[int, Stream], Channel | OwnFile] = {}
        try:
            for ranks in plan.ranks:
                for stream in Stream:
                    stream_plan = plan_stream(stream, ranks, plan, policy, folder, placement)
                    if stream_plan.captured:
                        self._open(ranks.local, stream, stream_plan)
            self.pump = OutputPump(self._channels)
            self._pipes = {_identity(fd) for fd in self._owned()}
        except OSError as error:
            self._abandon()
            asked_for = bool(policy.log_dir or policy.placer)
            raise (cannot_start(error, len(plan.ranks)) if remedy(error) else unwritable(error, asked_for)) from error
        except BaseException:
            self._abandon()
            raise
        drop_in_forks(self)

    def stdio(self, local_rank: int) -> tuple[int | None, int | None]:
        """Return the descriptors for the worker's stdout and stderr; None if it inherits the agent's stream."""
        return self._ends.get((local_rank, Stream.OUT)), self._ends.get((local_rank, Stream.ERR))

    def begin(self) -> None:
        """Close the agent's write ends, of which the workers have copies, and start the pump. Each stream ends when its
        last writer ends."""
        self._close_write_ends()
        self.pump.start()

    def drain(self) -> int:
        """Read the rest of the output after all workers have ended. Returns `OutputPump.done`."""
        self.pump.end()
        return self.pump.done

    def delivered(self) -> int:
        """Return a number that grows while output moves: the bytes read plus the bytes written to the console."""
        return self.pump.moved + sum(console.written for console in self._consoles.values())

    def finish(self) -> bool:
        """Release everything except the workers' files. Returns the result of `OutputPump.finish`."""
        self._close_write_ends()
        self.pump.end()
        delivered = self.pump.finish()
        for sink in self._filtered.values():
            sink.close()
        return delivered

    def close(self) -> None:
        """Close the workers' files. Call this after `finish`, when nothing more needs to be read from the files."""
        for file in self._own_files():
            file.close()
        self._sources.clear()

    def stderr(self, local_rank: int) -> Channel | OwnFile:
        """Return the worker's stderr. Its last lines are complete once `finish` has returned."""
        return self._sources[local_rank, Stream.ERR]

    def files(self, local_rank: int) -> tuple[Path, ...]:
        """Return the worker's log files, stdout before stderr."""
        return tuple(source.path for source in self._streams(local_rank) if source.path)

    def written(self, local_rank: int) -> int:
        """Return how many bytes the worker has written, to files or through the pump."""
        return sum(source.written for source in self._streams(local_rank))

    def drop(self) -> None:
        """Close this round's descriptors in a forked child. A worker has its own copies by then.

        The pump runs while other threads fork, so the number of a closed descriptor may already refer to another file,
        which must stay open."""
        for fd in self._owned():
            with contextlib.suppress(OSError):
                if _identity(fd) in self._pipes:
                    os.close(fd)

    def _streams(self, local_rank: int) -> list[Channel | OwnFile]:
        places = ((local_rank, stream) for stream in Stream)
        return [self._sources[place] for place in places if place in self._sources]

    def _own_files(self) -> list[OwnFile]:
        return [source for source in self._sources.values() if isinstance(source, OwnFile)]

    def _owned(self) -> list[int]:
        return [*self._write_ends, *(file.descriptor for file in self._own_files()), *self.pump.owned()]

    def _open(self, local_rank: int, stream: Stream, plan: StreamPlan) -> None:
        place, path, filtered = (local_rank, stream), plan.file, plan.filtered
        only_there = not plan.console and filtered is None
        if path and only_there and (path.is_file() or not path.exists()):  # not a device, which cannot be read back
            own = self._sources[place] = OwnFile(path)
            self._ends[place] = own.descriptor
            return
        if filtered is not None and filtered not in self._filtered:
            self._filtered[filtered] = FileSink(filtered, "appears only in the workers' regular output")
        chosen = self._filtered[filtered] if filtered is not None else None
        channel = self._sources[place] = Channel(plan, self._consoles[stream], chosen, self._screen)
        read_end, write_end = os.pipe()
        self._channels[read_end] = channel
        self._ends[place] = write_end
        self._write_ends.append(write_end)

    def _close_write_ends(self) -> None:
        for fd in self._write_ends:
            os.close(fd)
        self._write_ends.clear()

    def _abandon(self) -> None:
        self._close_write_ends()
        for fd in self._channels:
            os.close(fd)
        for source in (*self._sources.values(), *self._filtered.values()):
            source.close()


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for fd in ends:
        undo.callback(os.close, fd)
    return ends


def _identity(fd: int) -> tuple[int, int]:
    """Return the kernel's identifier of a file, or of both ends of a pipe."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def unwritable(error: OSError, log_dir: bool) -> ConfigurationError:
    """Return the error for a file or folder that cannot be created, in the user's log folder or a temporary one."""
    return ConfigurationError(
        Problem(
            "--log-dir" if log_dir else "TMPDIR",
            f"cannot write to {error.filename or 'any folder'}: {error.strerror or error}; "
            "choose another folder, or check its permissions and free space",
        )
    )


def check_log_dir(folder: Path) -> Path:
    """Create the log folder, and check that it is writable. A full disk is not an error, because a node that joins a
    running job can do without log files. Raises ConfigurationError."""
    try:
        if not os.access(files.make_folders(folder), os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "no files can be created there", str(folder))
    except OSError as error:
        if error.errno not in FULL:
            raise unwritable(error, log_dir=True) from error
    return folder


def make_folder(folder: Path, latest: Path | None) -> None:
    """Create the round's folder. In a log folder, make the link `latest` point to it. Raises ConfigurationError if the
    folder cannot be created."""
    try:
        if latest is None:
            folder.mkdir(parents=True, exist_ok=True)
        else:
            files.make_folders(latest.parent, *folder.relative_to(latest.parent).parts)
    except OSError as error:
        raise unwritable(error, log_dir=latest is not None) from error
    if latest is not None:
        _point(latest, folder)


def _point(link: Path, folder: Path) -> None:
    """Replace the link in one step. The job runs without the link if the file system does not support links, or if a
    folder with the link's name already exists."""
    fresh = link.with_name(f".{link.name}.{secrets.token_hex(8)}")  # other nodes may share the folder
    try:
        fresh.symlink_to(os.path.relpath(folder, link.parent), target_is_directory=True)
        fresh.replace(link)
    except OSError:
        fresh.unlink(missing_ok=True)
