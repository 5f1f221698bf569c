"""Lets all workers of a job save and stop after the same step.

A training loop calls `should_stop(step)`. When the job or one of its nodes is asked to stop, the agents determine the
highest step that any worker has announced, and `should_stop` becomes true in every worker at the same later step.
Workers never wait for each other, so they cannot deadlock.

In each step, a worker only writes to a page of memory that it shares with its agent. The agent answers in the same
page.
"""

from __future__ import annotations

import os
import struct
import time
from typing import TYPE_CHECKING

from elastic_core.clock import Instant, SystemClock
from elastic_core.support.files import PageFile, mapped
from elastic_core.support.processes import process_runs

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

    from elastic_core.clock import Duration

STOP_FILE = "ELASTIC_STOP_FILE"
"""The environment variable that contains the path of the worker's page."""

GREATEST_STEP = 2**63 - 1
_WHOLE, _REAL = struct.Struct("q"), struct.Struct("d")
_STEP, _SAVED, _ASKED, _AT, _UNTIL, _OWNER, _REASON = 0, 8, 16, 24, 32, 40, 48  # offsets in the page
_SIZE = 256
_NONE, _NO_STEP = -1, -2  # no step yet; the agents could not agree on a step
_PAUSE: Duration = 0.001  # seconds between two reads of the page while the agents agree
_CLOCK = SystemClock()
_page: mmap.mmap | bytearray | None = None


def should_stop(step: int) -> bool:
    """Return whether this worker should save and end its training loop now.

    Call this once per step, in the training thread, outside code that `torch.compile` compiles. All workers of the job
    get true at the same step, or none does. Until the job is asked to stop, a call takes less than a microsecond and
    involves no communication. After that, a call blocks while the agents agree on the step, usually for milliseconds
    and never for more than half of the time until the deadline. Without an agent, the result is always false. If a
    worker has several processes, only the first process that calls this function can get true.

    Args:
        step: the number of the step, 0 or more. All workers must count in the same way, and the number must never
            decrease within a round.
    """
    page = _page or _open_page()
    _WHOLE.pack_into(page, _STEP, step)
    return page[_ASKED] != 0 and _is_last(page, step)


def stopped(step: int) -> None:
    """Report that this worker has saved and needs no more time. Only programs that do not exit after they have saved
    need to call this function."""
    _WHOLE.pack_into(_page or _open_page(), _SAVED, step)


def stop_deadline() -> Duration | None:
    """Return the seconds (0 or more) until this worker is killed, or None if it has not been asked to stop."""
    page = _page or mapped(STOP_FILE, _SIZE)
    return max(_until(page) - _CLOCK.now(), 0.0) if page[_ASKED] else None


def stop_reason() -> str:
    """Return why this worker was asked to stop, or an empty string if it was not."""
    page = _page or mapped(STOP_FILE, _SIZE)
    return page[_REASON:_SIZE].rstrip(b"\0").decode(errors="replace") if page[_ASKED] else ""


def _is_last(page: mmap.mmap | bytearray, step: int) -> bool:
    """Wait until the agents have agreed on the step, and return whether `step` has reached it."""
    while (at := _WHOLE.unpack_from(page, _AT)[0]) == _NONE and _CLOCK.now() < _until(page):
        time.sleep(_PAUSE)
    return bool(0 <= at <= step)


def _until(page: mmap.mmap | bytearray) -> Instant:
    return Instant(_REAL.unpack_from(page, _UNTIL)[0])


def _open_page() -> mmap.mmap | bytearray:
    """Map the page. The first process of a worker that maps the page owns it until the process ends. Other processes,
    such as those of a DataLoader, get an unshared page, so they neither announce steps nor are asked to stop."""
    global _page
    page, own = mapped(STOP_FILE, _SIZE), os.getpid()
    owner = _WHOLE.unpack_from(page, _OWNER)[0]
    if owner not in (0, own) and process_runs(owner, None):
        page = bytearray(_SIZE)
    _WHOLE.pack_into(page, _OWNER, own)
    _page = page
    return page


def _forget_page() -> None:
    """Forget the page in a forked child, which may itself be a worker with its own file."""
    global _page
    _page = None


os.register_at_fork(after_in_child=_forget_page)


class StopFile(PageFile):
    """The agent's side of one worker's page. Raises OSError as `PageFile` does."""

    def __init__(self, path: Path) -> None:
        numbers = (_NONE, _NONE, 0, _NONE)
        super().__init__(path, b"".join(map(_WHOLE.pack, numbers)).ljust(_SIZE, b"\0"))

    def announced(self) -> int:
        """Return the last step that the worker has passed to `should_stop`, or -1 if there is none."""
        return self._number(_STEP)

    def saved(self) -> bool:
        """Return whether the worker has called `stopped`."""
        return self._number(_SAVED) >= 0

    def ask(self, until: Instant, reason: str) -> None:
        """Ask the worker to stop. Its next call to `should_stop` then blocks until `answer` is called or `until` has
        passed. A second call changes the deadline."""
        if self._number(_ASKED) != 1:
            self.write(_WHOLE.pack(_NONE), _SAVED)  # discard the worker's earlier reports
        self.write(reason.encode(errors="replace")[: _SIZE - _REASON], _REASON)
        self.write(_REAL.pack(until), _UNTIL)
        self.write(_WHOLE.pack(1), _ASKED)

    def answer(self, step: int | None) -> None:
        """Send the worker the step at which to stop. After None, there is no such step, and the worker gets SIGTERM."""
        self.write(_WHOLE.pack(_NO_STEP if step is None else step), _AT)

    def _number(self, offset: int) -> int:
        content = self.read()
        return max(_WHOLE.unpack_from(content, offset)[0], _NONE) if content else _NONE
