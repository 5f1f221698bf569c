"""A watch over the memory of the process that hosts a store. torch's server keeps all that is written to it, whoever
wrote it, and neither bounds it nor tells how much it is; so a store that has made its host too large is ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_c10d.connection import received_from
from elastic_core.log import get_logger
from elastic_core.support.addresses import joined_host_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration

MOST_BYTES = 512 << 20
"""By how much the process may grow. The stores of a thousand nodes have a few MiB."""

_EVERY: Duration = 1.0
_MIB = 1 << 20


def own_memory() -> int:
    """The bytes that are this process's own. Raises OSError where that cannot be read."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


class FloodWatch:
    """Looks once in a second, in a thread, whether the process has grown by too much. Then the store is ended, and a
    new one that is empty takes its place, which nodes take for an outage. If the process is as large afterwards,
    something else in it has grown, and the watch ends.

    Args:
        port: the store's.
        renew: ends the store and starts another one. Returns whether it could; it is called again if not.
        most: bytes.
        size: how large the process is.
        every: seconds between looks.
    """

    def __init__(
        self,
        port: int,
        renew: Callable[[], bool],
        most: int = MOST_BYTES,
        size: Callable[[], int] = own_memory,
        every: Duration = _EVERY,
    ) -> None:
        self._port = port
        self._renew = renew
        self._most = most
        self._size = size
        self._every = every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="store-flood-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Idempotent."""
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        try:
            least = self._size()
            while not self._ended.wait(self._every):
                least = min(least, self._size())
                if self._size() - least > self._most and not self._end_store(least):
                    return
        except OSError:  # there is no such system here, or nothing can be read any more
            return

    def _end_store(self, least: int) -> bool:
        """Returns whether that was of use."""
        log = get_logger(port=self._port)
        heaviest = ", ".join(
            f"{joined_host_port(host, port)} sent {taken // _MIB} MiB"
            for host, port, taken in received_from(self._port)[:3]
        )
        grown = (self._size() - least) // _MIB
        log.error("store flooded", grown_mib=grown, most_mib=self._most // _MIB, heaviest=heaviest)
        while not self._renew():
            if self._ended.wait(self._every):
                return False
        with contextlib.suppress(AttributeError, OSError):  # another libc than GNU's gives memory back in its own way
            ctypes.CDLL(None).malloc_trim(0)
        if self._size() - least <= self._most:
            return True
        log.warning("store not watched", reason="what has grown in this process is not the store", grown_mib=grown)
        return False
