"""What is read from files at the start, and again once others have taken their place: tokens and certificates that are
rotated. A file that others can read or change is told of and used all the same: in a container that may be nobody."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from elastic_core.plugin import BackgroundCall, SystemClock, get_logger, later

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.plugin import Clock

T = TypeVar("T")

_AT_MOST_EVERY = 1.0  # seconds between two looks at the files
_PATIENCE = 0.2  # seconds that requests wait for a look: a file system that hangs must not keep probes waiting


class FromFiles(Generic[T]):
    """What `make` makes of these files, and makes again after they have changed. While that fails the last one stays.
    One thread at a time.

    Args:
        make: raises ValueError where it cannot, with words that name the files.

    Raises:
        ValueError: of `make`, the first time.
    """

    def __init__(self, files: Sequence[str], make: Callable[[], T], clock: Clock | None = None) -> None:
        self._files = files
        self._make = make
        self._clock = clock or SystemClock()
        self._look: BackgroundCall[tuple[object, T]] | None = None
        self._told = ""
        self._seen, self._value = self._read()
        self._next = later(self._clock.now(), _AT_MOST_EVERY)

    def now(self) -> T:
        """What they hold, or held a second ago; what they held before, while they cannot be read."""
        if self._look is None and self._clock.now() >= self._next:
            with contextlib.suppress(RuntimeError):  # there is no room for one more thread: another time
                self._look = BackgroundCall(self._read_if_changed, "elastic-health-files")
                self._look.wait(_PATIENCE)
        if self._look is not None and self._look.wait(0):
            look, self._look = self._look, None
            self._next = later(self._clock.now(), _AT_MOST_EVERY)
            try:
                self._seen, self._value = look.result()
                self._told = ""
            except ValueError as error:
                self._tell(str(error))
        return self._value

    def _read_if_changed(self) -> tuple[object, T]:
        return (self._seen, self._value) if self._marks() == self._seen else self._read()

    def _read(self) -> tuple[object, T]:
        marks = self._marks()  # first: what is replaced while it is read is read again
        return marks, self._make()

    def _marks(self) -> object:
        return [_mark(file) for file in self._files]

    def _tell(self, reason: str) -> None:
        if reason != self._told:
            self._told = reason
            get_logger().warning(
                "health endpoint failed", endpoint="http", reason=f"what was read before is used: {reason}"
            )


def _mark(file: str) -> object:
    """Another one when the file is another, or has other content; None if it is not there."""
    try:
        found = Path(file).stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_size


def exposure(path: str) -> str:
    """Why a secret in a file may be none, and what to do; empty if nothing is found. A file of somebody else, such as
    root, may be readable for a group: that is how Kubernetes gives it to this process."""
    try:
        found = Path(path).stat()
    except OSError:  # who reads it will tell
        return ""
    others = stat.S_IRWXO if found.st_uid != os.geteuid() else stat.S_IRWXG | stat.S_IRWXO
    if not found.st_mode & others:
        return ""
    return (
        f"other users may read or change {path}, whose mode is {stat.S_IMODE(found.st_mode):04o}; "
        "chmod 600, or in Kubernetes defaultMode: 0400 and an fsGroup"
    )
