"""Values read from files, such as tokens and certificates. They are reloaded when the files change, so that secrets can
be rotated. If other users can read or change a file, a warning is logged. The file is still used, because a container
may have no other users."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from elastic_core.plugin import BackgroundCall, SystemClock, get_logger, later

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

_AT_MOST_EVERY = 1.0  # seconds between two checks of the files
_PATIENCE = 0.2  # seconds that a request waits for a check, so that a hung file system does not block probes


class FromFiles(Generic[T]):
    """A value that `make` builds from files and rebuilds when they change. If rebuilding fails, the previous value is
    kept. Not thread-safe.

    Args:
        make: builds the value. Raises ValueError with a message that names the files.

    Raises:
        ValueError: the first call to `make` failed.
    """

    def __init__(self, files: Sequence[str], make: Callable[[], T]) -> None:
        self._files = files
        self._make = make
        self._clock = SystemClock()
        self._look: BackgroundCall[tuple[object, T]] | None = None
        self._told = ""
        self._seen, self._value = self._read()
        self._next = later(self._clock.now(), _AT_MOST_EVERY)

    def now(self) -> T:
        """Return the current value, at most about a second old. If the files cannot be read, return the previous
        value."""
        if self._look is None and self._clock.now() >= self._next:
            with contextlib.suppress(RuntimeError):  # no thread could be started; try again at the next call
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
        marks = self._marks()  # before reading, so that a file that is replaced during the read is read again
        return marks, self._make()

    def _marks(self) -> object:
        return [_mark(file) for file in self._files]

    def _tell(self, reason: str) -> None:
        if reason != self._told:
            self._told = reason
            get_logger().warning(
                "health endpoint failed", endpoint="http", reason=f"the previous content is used: {reason}"
            )


def _mark(file: str) -> object:
    """Return a value that changes when the file is replaced or modified, or None if the file does not exist."""
    try:
        found = Path(file).stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_size


def exposure(path: str) -> str:
    """Return why the secret in the file may be exposed and what to do about it, or an empty string if it is safe. If
    another user, such as root, owns the file, its group may have access, because Kubernetes provides secrets in this
    way."""
    try:
        found = Path(path).stat()
    except OSError:  # reported when the file is read
        return ""
    others = stat.S_IRWXO if found.st_uid != os.geteuid() else stat.S_IRWXG | stat.S_IRWXO
    if not found.st_mode & others:
        return ""
    return (
        f"other users may read or change {path}, whose mode is {stat.S_IMODE(found.st_mode):04o}; "
        "chmod 600, or in Kubernetes defaultMode: 0400 and an fsGroup"
    )
