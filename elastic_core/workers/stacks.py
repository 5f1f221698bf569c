"""Stacks: what a hung worker was doing; it is asked for them just before it is killed.

The agent turns on Python's faulthandler in watched workers. It writes the stacks of all threads to stderr when SIGABRT
comes, without the interpreter's lock, so also from C code that never releases it; then the process dies. Only a process
that catches SIGABRT is asked; its /proc entry says whether it does. For one that does not, or handles SIGABRT in its
own way, py-spy is used if it is installed.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock, later
from elastic_core.workers import sessions
from elastic_core.workers.interrupts import interrupts_held
from elastic_core.workers.process import best_sentinel, wait_readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from elastic_core.clock import Clock, Duration, Instant

MOST_LINES = 200
MOST_CHARACTERS = 16 * 1024
NO_STACK = "no stack: "

_MARKER = re.compile(
    rb"Fatal Python error: (Aborted|Segmentation fault|Bus error|Floating[- ]point exception|Illegal instruction)\s*$"
)
_HEADS = rb"(Current thread|Thread) 0x.*\(most recent call first\):\s*$|Current thread's C stack"
_BEGINS = re.compile(_HEADS)
# What a dump consists of. A traceback has a comma more: `  File "x", line 1, in f`.
_OF_DUMP = re.compile(
    _HEADS
    + rb"|\s*$|\.\.\.\s*$|Extension modules: |  (File .*, line (\d+|\?\?\?) in |Binary file |\.\.\.|<|Garbage-coll)"
)
_THREAD = re.compile(r"(Current thread|Thread) 0x")
_HEAD = re.compile(r"(Current t|T)hread\b")
_LONGEST_LINE = 400  # bytes
_MOST_KEPT = 12_000  # lines: faulthandler itself stops at a hundred threads of a hundred frames
_MOST_DUMPS = 4
_MOST_OF_SPY = 256 * 1024  # bytes
_ENDING: Duration = 0.5  # seconds for py-spy to be gone once it was killed


class DumpSink:
    """Picks the last few dumps of faulthandler out of a stream of lines; the rest is the worker's own output. Fed by
    one thread, read by any.

    A dump goes on until another line comes; after that only the head of a thread's stack, which nothing but
    faulthandler writes, continues it: a line of another process may have come in between."""

    def __init__(self) -> None:
        self._inside = False
        self._dumps: collections.deque[collections.deque[bytes]] = collections.deque(maxlen=_MOST_DUMPS)

    def take(self, line: bytes) -> bytes:
        """Keep what is of a dump; returns the rest: what was written before the dump began, or all of it."""
        if marker := _MARKER.search(line):
            self._dumps.append(collections.deque(maxlen=_MOST_KEPT))
            self._inside = True
            return line[: marker.start()]
        self._inside = bool((self._inside and _OF_DUMP.match(line)) or (self._dumps and _BEGINS.match(line)))
        if not self._inside:
            return line
        self._dumps[-1].append(line.rstrip()[:_LONGEST_LINE])
        return b""

    def text(self) -> str:
        """The dumps as one text, see `arranged`; empty when there were none."""
        dumps = [tuple(dump) for dump in tuple(self._dumps)]  # each in one step: more may come meanwhile
        told = (arranged([line.decode(errors="replace") for line in dump]) for dump in dumps if dump)
        return bounded("\n\n".join(told))


def arranged(lines: Sequence[str]) -> str:
    """What faulthandler wrote, with the main thread first: it names the threads from the newest to the oldest.
    Bounded."""
    blocks: list[list[str]] = []
    for line in lines:
        if _HEAD.match(line):
            blocks.append([])
        if blocks and line.strip() and not line.startswith("Extension modules: "):
            blocks[-1].append(line)
    threads = [block for block in blocks if _THREAD.match(block[0])]
    rest = [block for block in blocks if not _THREAD.match(block[0])]
    return bounded("\n\n".join("\n".join(block) for block in [*threads[-1:], *threads[:-1], *rest]))


def bounded(text: str) -> str:
    """The beginning of a text, in whole lines, and how many lines are missing."""
    lines = [line[:_LONGEST_LINE] for line in text.strip().splitlines()]
    kept, length = 0, 0
    while kept < min(len(lines), MOST_LINES) and length + len(lines[kept]) < MOST_CHARACTERS:
        length += len(lines[kept]) + 1
        kept += 1
    missing = [f"... and {len(lines) - kept} lines more"] if kept < len(lines) else []
    return "\n".join([*lines[:kept], *missing])


def catches_abort(pid: int) -> bool:
    """Whether the process has a handler for SIGABRT. If that is unknown: yes."""
    return sessions.catches(pid, signal.SIGABRT)


def abort(pid: int) -> None:
    """Let the process die of SIGABRT, without a core dump, even if it is stopped."""
    _forbid_core(pid)
    sessions.send(pid, signal.SIGABRT)
    sessions.send(pid, signal.SIGCONT)


def _forbid_core(pid: int) -> None:
    """A core dump of a worker can be as large as the memory of its machine, and holds up its end for as long. A limit
    of one byte, unlike none at all, also holds for one that is piped to a program."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # gone, not ours, or a system without prlimit
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, (0 if hard == 0 else 1, hard))


def why_silent(pid: int, seconds: Duration) -> str:
    """Why a process that catches SIGABRT has written no stack, as far as can be told."""
    stat = sessions.best_table().stat(pid)
    if stat is None or stat.ended:
        return "it died of SIGABRT, and no stack came to its stderr, which it may have sent elsewhere"
    if stat.state == "D":
        return f"it sleeps in the kernel (state D, in {sessions.waits_in(pid) or 'unknown'}) and hears no signal"
    if stat.state == "t":
        return "a debugger holds it"
    return f"it did not react to SIGABRT for {seconds:g} s: it blocks the signal or handles it in a way of its own"


def spied(pid: int, environ: Mapping[str, str], patience: Duration, clock: Clock | None = None) -> tuple[str, str]:
    """What py-spy says of the process within `patience` seconds, and if that is nothing, why."""
    program = shutil.which("py-spy", path=environ.get("PATH"))
    if program is None:
        return "", "py-spy, which could ask from outside, is not installed"
    try:
        code, output = _run([program, "dump", "--pid", str(pid)], environ, patience, clock or SystemClock())
    except OSError as error:
        return "", f"py-spy cannot be run: {error.strerror}"
    text = output.decode(errors="replace")
    if code == 0 and text.strip():
        return bounded(text), ""
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "nothing")
    took = f"did not answer within {patience:g} s" if code is None else f"left with {code}"
    return "", f"py-spy {took} and said: {last.strip()[:_LONGEST_LINE]}"


def _run(
    command: Sequence[str], environ: Mapping[str, str], patience: Duration, clock: Clock
) -> tuple[int | None, bytes]:
    """Exit code (None: it was killed because it took too long or said too much) and output of a program."""
    with contextlib.ExitStack() as stack:
        with interrupts_held():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                start_new_session=True,
            )
            stack.callback(_end, process)
        ended = best_sentinel()(process.pid)
        stack.callback(os.close, ended)
        until = later(clock.now(), patience)
        assert process.stdout is not None
        with process.stdout as pipe:
            output = _read(pipe.fileno(), until, clock)
        in_time = wait_readable(ended, max(until - clock.now(), 0.0))
        if not in_time:
            _end(process)
            wait_readable(ended, _ENDING)
        return (process.poll() if in_time else None), output


def _end(process: subprocess.Popen[bytes]) -> None:
    """Also what it started, if it has not ended by itself."""
    if process.poll() is None:
        sessions.send_group(process.pid, signal.SIGKILL)


def _read(fd: int, until: Instant, clock: Clock) -> bytes:
    output = b""
    while len(output) < _MOST_OF_SPY and wait_readable(fd, max(until - clock.now(), 0.0)):
        chunk = os.read(fd, 65536)
        if not chunk:
            break
        output += chunk
    return output


def explained(reasons: Iterable[str]) -> str:
    """The words in place of a stack."""
    return NO_STACK + "; ".join(reason for reason in reasons if reason)
