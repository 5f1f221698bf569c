"""The worker's end of the pipe. Writing a request takes only a few microseconds and requires neither threads nor
locks."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import stat
import threading
import warnings
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING

from elastic_core.plugin import Instant, SystemClock, TimerClient, later, process_start_time
from elastic_file_timer.request import LONGEST, FileTimerRequest

if TYPE_CHECKING:
    from elastic_core.plugin import Clock

TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
RUN_ID = "TORCHELASTIC_RUN_ID"
_AGAIN = 0.05  # seconds between attempts to open the pipe; the kernel does not notify writers of a new reader
_NO_READER = (errno.ENOENT, errno.ENXIO, errno.EPIPE)
_MOST_UNSENT = 1000


class FileTimerClient(TimerClient):
    """Sets and releases timers through a server's pipe. A client is thread-safe, works in forked child processes, and
    can be pickled.

    Args:
        file_path: the path of the pipe, which a server creates.
        signal: the signal that a server without an agent sends to this process when a timer expires. If it is 0 or
            less, the expiry is only logged. An agent stops the process in its own way.
        run_id: the job's run id (default: the one in the environment). Servers of other jobs refuse this client's
            requests.
        patience: the maximum number of seconds that `acquire` waits for a server and for space in the pipe, and that
            `release` waits for space.
        clock: defaults to the system clock.
    """

    def __init__(
        self,
        file_path: str | os.PathLike[str],
        signal: int = SIGKILL,
        run_id: str | None = None,
        patience: float = 2.0,
        clock: Clock | None = None,
    ) -> None:
        self._path = str(Path(file_path).absolute())
        self._signal = int(signal)
        self._run_id = run_id
        self._patience = patience
        self._clock = clock or SystemClock()
        self._outlet: _Outlet | None = None
        self._me: tuple[int, int | None] = (0, None)
        self._unsent: dict[str, None] = {}
        self._held = False  # the pipe was full at the last attempt; until a request succeeds, requests do not wait

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_outlet": None, "_unsent": {}}

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Set a timer (see `TimerClient.acquire`). If a server has opened the pipe but does not read from it for
        `patience` seconds, `acquire` emits a warning and sets no timer. The script continues, because a suspended agent
        could not kill a hung worker anyway.

        Raises:
            BrokenPipeError: no server has opened the pipe within `patience` seconds.
            ValueError: the time is invalid, or the scope is too long for a request.
        """
        if not (math.isfinite(expiration_time) and expiration_time >= 0):
            raise ValueError(f"expected seconds since the epoch, found {expiration_time!r}")
        left = expiration_time - self._clock.timestamp()  # before `now`, so that a delay does not shorten the timer
        begun = self._clock.now()
        deadline = later(begun, left)
        patience = later(begun, self._patience)
        until = begun if self._held else patience
        released = scope_id in self._unsent
        self._unsent.pop(scope_id, None)
        for scope in list(self._unsent):
            self._release(scope, server_until=begun, room_until=until)
        line = self._line(scope_id, expiration_time, self._signal, deadline)
        try:
            self._send(line, patience, until)
            self._held = False
        except TimeoutError as error:
            if released:
                self._unsent[scope_id] = None  # the timer before this one is still set
            warned, self._held = self._held, True
            if not warned:
                warnings.warn(f"no timer for {scope_id!r}: {error.strerror}", RuntimeWarning, stacklevel=2)

    def release(self, scope_id: str) -> None:
        """Release a timer (see `TimerClient.release`). If the request cannot be sent now, it is sent before the next
        timer is acquired."""
        now = self._clock.now()
        self._release(scope_id, server_until=now, room_until=now if self._held else later(now, self._patience))

    def _release(self, scope_id: str, server_until: Instant, room_until: Instant) -> None:
        try:
            self._send(self._line(scope_id, -1.0, 0, None), server_until, room_until)
            self._unsent.pop(scope_id, None)
        except (OSError, ValueError):
            if len(self._unsent) < _MOST_UNSENT:
                self._unsent[scope_id] = None

    def _line(self, scope_id: str, expiration_time: float, signal: int, deadline: Instant | None) -> bytes:
        pid = os.getpid()
        if self._me[0] != pid:
            self._me = (pid, process_start_time(pid))
        run_id = os.environ.get(RUN_ID, "") if self._run_id is None else self._run_id
        request = FileTimerRequest(pid, scope_id, expiration_time, signal, run_id, self._me[1], deadline)
        line = f"{request.to_json()}\n".encode()
        if len(line) > LONGEST:
            raise ValueError(f"the request is {len(line)} bytes long (maximum: {LONGEST}); use a shorter scope")
        return line

    def _send(self, line: bytes, server_until: Instant, room_until: Instant) -> None:
        """Write a request. Waits for a server until `server_until`, and for space in the pipe until `room_until`."""
        while True:
            outlet = self._outlet
            try:
                if outlet is None:
                    outlet = self._outlet = _Outlet(self._path)
                return outlet.write(line)
            except BlockingIOError:
                self._wait_for_room(outlet, room_until)
            except OSError as error:
                self._outlet = None
                if outlet is None:
                    self._wait_for_server(error, server_until)

    def _wait_for_server(self, error: OSError, until: Instant) -> None:
        if error.errno not in _NO_READER or self._clock.now() >= until:
            raise BrokenPipeError(
                errno.EPIPE,
                f"no timer server reads the pipe: {error.strerror or error}; is the agent's watchdog still running?",
                self._path,
            ) from error
        threading.Event().wait(_AGAIN)

    def _wait_for_room(self, outlet: _Outlet | None, until: Instant) -> None:
        left = until - self._clock.now()
        if left <= 0:
            raise TimeoutError(
                errno.ETIMEDOUT,
                f"the timer server has not read its pipe for {self._patience:g} s; is the agent suspended?",
                self._path,
            )
        if outlet is not None:
            outlet.wait(left)


class _Outlet:
    """An open pipe. It is closed when its last reference is deleted, so threads need no lock. The script may close the
    descriptor, whose number may then be reused for another file. Each write and the close therefore check the pipe's
    identity first."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._status = os.fstat(self._fd)
        if not stat.S_ISFIFO(self._status.st_mode):
            raise OSError(errno.EINVAL, "it is not a pipe", path)
        if self._status.st_uid not in (0, os.geteuid()):
            raise OSError(errno.EPERM, f"it belongs to user {self._status.st_uid}", path)

    def write(self, line: bytes) -> None:
        """Write the whole line. Raises BlockingIOError if there is no space."""
        if not self._is_open():
            raise BrokenPipeError(errno.EPIPE, "the script has closed it")
        os.write(self._fd, line)

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` until there is space or the pipe has no reader."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        poll.poll(math.ceil(seconds * 1000))

    def _is_open(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), self._status)
        except OSError:
            return False

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            if self._is_open():
                os.close(self._fd)


def from_environment() -> FileTimerClient:
    """Create a client for the agent's pipe. Raises RuntimeError if the agent has no pipe."""
    path = os.environ.get(TIMER_FILE)
    if not path:
        raise RuntimeError(f"{TIMER_FILE} is not set; start the script with --watchdog=file")
    return FileTimerClient(path)
