"""A process that runs an etcd server for its owner, and stops the server when the owner closes its input or dies.

This file is a program: `python -I -S keeper.py SCRATCH COMMAND...`. When its standard input closes, it stops the server
and removes the folder SCRATCH (unless this argument is an empty string). It prints `started PID`, `failed WHY` and
`exited CODE`, one per line. It uses only the standard library and runs in its own session, so that a signal to the
owner's group does not reach it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PARENT_DEATH_SIGNAL = 1
_GRACE = 5.0  # seconds from SIGTERM to SIGKILL


def tell(line: str) -> None:
    """Report to the owner if the owner still exists."""
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


def keep(command: Sequence[str], scratch: str) -> None:
    """Run the command until standard input closes."""
    libc = ctypes.CDLL(None)
    end = functools.partial(libc.prctl, _PARENT_DEATH_SIGNAL, signal.SIGKILL) if sys.platform == "linux" else None
    try:
        # If the owner and this process are killed together, nothing else would end the server.
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=end)
    except OSError as error:
        tell(f"failed {error.strerror or error}")
    else:
        tell(f"started {server.pid}")
        waiting = threading.Thread(target=lambda: tell(f"exited {server.wait()}"))
        waiting.start()
        sys.stdin.buffer.read()
        _end(server, waiting)
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)


def _end(server: subprocess.Popen[bytes], waiting: threading.Thread) -> None:
    server.terminate()
    server.send_signal(signal.SIGCONT)  # a suspended process would not react to SIGTERM
    waiting.join(_GRACE)
    if waiting.is_alive():
        server.kill()
        waiting.join()


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, lambda *_: None)  # unlike SIG_IGN, the server does not inherit this handler
    keep(sys.argv[2:], sys.argv[1])
