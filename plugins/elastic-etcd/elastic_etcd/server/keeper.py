"""The process between us and an etcd that we start: it starts it, and ends it when we let go or die, however we die.

This file is also a program, `python -I -S keeper.py SCRATCH COMMAND...`. Its standard input closes when its
owner is gone; then it ends the server and removes the folder SCRATCH (none if empty). On its standard output it tells
`started PID`, `failed WHY` and `exited CODE`, a line each. It needs the standard library only, and leads a session of
its own, so that what ends its owner does not end it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_GRACE = 5.0  # seconds from SIGTERM to SIGKILL


def tell(line: str) -> None:
    """To the owner, if there still is one."""
    try:
        os.write(1, f"{line}\n".encode())
    except OSError:
        pass


def keep(command: Sequence[str], scratch: str) -> None:
    """Run the command until our standard input ends."""
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
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
    server.send_signal(signal.SIGCONT)  # one that is stopped would not hear of it
    waiting.join(_GRACE)
    if waiting.is_alive():
        server.kill()
        waiting.join()


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, lambda *_: None)  # which, unlike SIG_IGN, the server does not inherit
    keep(sys.argv[2:], sys.argv[1])
