"""Splits one captured stream of a worker into lines, and passes the lines to a log file, the console and other sinks.
Faulthandler's dumps are kept separately."""

from __future__ import annotations

import collections
import contextlib
import errno
import itertools
import os
import re
import select
from typing import TYPE_CHECKING

from elastic_core.log import get_logger
from elastic_core.support.files import open_to_append

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from elastic_core.workers.streams import StreamPlan

# A bare carriage return (from a progress bar) also ends a line, except at the end of the text, where a line feed may
# follow.
_LINE_END = re.compile(rb"\r\n|\r(?=[^\n])|\n")
_LONGEST_LINE = 1024 * 1024
_MOST_READ = 256 * 1024  # bytes
TAIL_LINES = 20
TAIL_BYTES = 16 * 1024
_PIPE_BUF = select.PIPE_BUF
_REPLACE = b"\r\x1b[K"  # return to the start of the line and erase its text
_MOVES = re.compile(rb"\x1b\[[0-9;]*[A-HSTf]|\x1b\[[0-3]?J")  # would overwrite other workers' lines


class FileSink:
    """A log file opened for appending. Opening the file may raise OSError.

    The first write error is logged and closes the file. `descriptor` is then None. `later` completes the log message
    "later output ..."."""

    def __init__(self, path: Path, later: str = "goes to the console") -> None:
        self._path = path
        self._later = later
        self.descriptor: int | None = open_to_append(path)

    def write(self, data: bytes) -> bytes:
        """Write all of `data`. Returns the unwritten rest, which is empty unless a write has failed."""
        rest = memoryview(data)
        while rest and self.descriptor is not None:
            try:
                rest = rest[os.write(self.descriptor, rest) :]
            except OSError as error:
                self._log(error)
                self._release()
        return bytes(rest)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if (error := self._release()) is not None:  # a file server may report only now that it could not write
            self._log(error)

    def _release(self) -> OSError | None:
        descriptor, self.descriptor = self.descriptor, None  # even after an error, the descriptor is closed
        return None if descriptor is None else _closed(descriptor)

    def _log(self, error: OSError) -> None:
        consequence = f"the file ends here; later output {self._later}"
        get_logger().error("output lost", file=str(self._path), reason=error.strerror, consequence=consequence)


def _closed(descriptor: int) -> OSError | None:
    """Close the descriptor, and return any error."""
    try:
        os.close(descriptor)
    except OSError as error:
        return error
    return None


class OwnFile:
    """A log file that a worker writes directly, so that neither a slow console nor a suspended agent delays the worker.
    The agent reads the file for reports, even after it is renamed or removed. Opening the file may raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = open_to_append(path, access=os.O_RDWR)
        self._begin = self._asked = self._size()

    @property
    def written(self) -> int:
        """The number of bytes written since the file was opened."""
        with contextlib.suppress(OSError):
            return max(self._size() - self._begin, 0)
        return 0

    def tail(self) -> tuple[str, ...]:
        """Return the last lines."""
        return self._read(self._begin).lines()

    def expect_dump(self) -> None:
        """Make `dump` ignore everything that was written before this call."""
        self._asked = self._begin + self.written

    def dump(self) -> str:
        """Return the stacks that faulthandler has written (see `expect_dump`)."""
        return self._read(self._asked).dump.text()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            space = os.fstatvfs(self.descriptor)
            if space.f_blocks and not space.f_bavail:  # the worker has seen the error, but could not print it either
                get_logger().error("output lost", file=str(self.path), reason=os.strerror(errno.ENOSPC))
        _closed(self.descriptor)

    def _size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def _read(self, begin: int) -> TailSink:
        """Read the lines from offset `begin` to the end of the file. Only the last _MOST_READ bytes are read."""
        tail = TailSink()
        with contextlib.suppress(OSError):  # for example, a file server has failed
            data = os.pread(self.descriptor, _MOST_READ, max(begin, self._size() - _MOST_READ))
            for line in _LINE_END.split(data):
                tail.write_line(line)
        return tail


class TerminalLine:
    """The state of the terminal's current line, which all workers' streams share.

    A progress bar is text whose last update ended with a carriage return. A line from another stream replaces the bar.
    The bar is redrawn when it is next updated or ends. Other unfinished text stays on the screen."""

    def __init__(self) -> None:
        self._owner: object = None
        self._leaves = b""  # ends the current line before another one begins
        self._with_bars: set[object] = set()
        self._erased: set[object] = set()

    def line(self, owner: object, prefix: bytes, text: bytes, shown: int) -> bytes:
        """Return the bytes that show `text`, a complete or unfinished line of the stream `owner`. The first `shown`
        bytes of `text` are already on the screen. The result includes the prefix unless the cursor is still on this
        line."""
        rest, erased = text[shown:], owner in self._erased
        if self._owner is not owner or not shown:
            if shown and not rest.strip(b"\r\n") and not (erased and text.endswith(b"\n")):
                return b""  # this ends a line that another stream has already ended or erased
            if self._leaves == _REPLACE and self._owner is not owner:
                self._erased.add(self._owner)
            self._erased.discard(owner)
            rest = self._leaves + prefix + (text if erased else rest)
        self._owner = owner
        if text.endswith(b"\r"):
            self._with_bars.add(owner)
        elif text.endswith(b"\n"):
            self._with_bars.discard(owner)
        self._leaves = b"" if text.endswith(b"\n") else _REPLACE if owner in self._with_bars else b"\n"
        return _MOVES.sub(b"", rest) if b"\x1b" in rest else rest


class ConsoleSink:
    """The agent's own stdout or stderr. Once the reader has closed the stream, output is dropped."""

    def __init__(self, fd: int) -> None:
        self.descriptor: int | None = fd  # None once the reader has closed it
        self.written = 0  # bytes; distinguishes a slow reader from one that has stopped
        self._has_failed = False

    def write(self, data: bytes) -> None:
        """Write all of `data`, waiting for a slow reader."""
        rest = memoryview(data)
        while rest and self.descriptor is not None:
            try:
                done = os.write(self.descriptor, rest[: _piece(rest)])
                self.written += done
                rest = rest[done:]
            except BlockingIOError:
                waiter = select.poll()  # not select, which cannot wait for descriptors above 1023
                waiter.register(self.descriptor, select.POLLOUT)
                waiter.poll()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    self.descriptor = None
                elif not self._has_failed:
                    get_logger().warning("output lost", reason=f"the console cannot be written to: {error.strerror}")
                self._has_failed = True
                return  # there may be space again for the next output


def _piece(data: memoryview) -> int:
    """Return how many bytes to write in one atomic call to a pipe, up to a line end if possible."""
    end = bytes(data[:_PIPE_BUF]).rfind(b"\n") + 1 if len(data) > _PIPE_BUF else len(data)
    return end or _PIPE_BUF


_MARKER = re.compile(
    rb"Fatal Python error: (Aborted|Segmentation fault|Bus error|Floating[- ]point exception|Illegal instruction)\s*$"
)
_HEADS = rb"(Current thread|Thread) 0x.*\(most recent call first\):\s*$|Current thread's C stack"
_BEGINS = re.compile(_HEADS)
# The lines of a dump. A traceback line has one more comma: `  File "x", line 1, in f`.
_OF_DUMP = re.compile(
    _HEADS
    + rb"|\s*$|\.\.\.\s*$|Extension modules: |  (File .*, line (\d+|\?\?\?) in |Binary file |\.\.\.|<|Garbage-coll)"
)
_THREAD = re.compile(r"(Current thread|Thread) 0x")
_HEAD = re.compile(r"(Current t|T)hread\b")
LONGEST_LINE = 400  # bytes
MOST_LINES = 200
MOST_CHARACTERS = 16 * 1024
_MOST_KEPT = 12_000  # lines; faulthandler itself stops at a hundred threads with a hundred frames each
_MOST_DUMPS = 4


class DumpSink:
    """Separates faulthandler's last few dumps from the worker's own output. One thread feeds the sink, and any thread
    may read it.

    A line from another process interrupts a dump. The dump resumes at the next line that begins a thread's stack."""

    def __init__(self) -> None:
        self._inside = False
        self._dumps: collections.deque[collections.deque[bytes]] = collections.deque(maxlen=_MOST_DUMPS)

    def take(self, line: bytes) -> bytes:
        """Keep the part of the line that belongs to a dump. Returns the rest of the line."""
        if marker := _MARKER.search(line):
            self._dumps.append(collections.deque(maxlen=_MOST_KEPT))
            self._inside = True
            return line[: marker.start()]
        self._inside = bool((self._inside and _OF_DUMP.match(line)) or (self._dumps and _BEGINS.match(line)))
        if not self._inside:
            return line
        self._dumps[-1].append(line.rstrip()[:LONGEST_LINE])
        return b""

    def text(self) -> str:
        """Return the dumps as one string (see `arranged`), or an empty string if there are none."""
        dumps = [tuple(dump) for dump in tuple(self._dumps)]  # atomic copies, because lines may be added concurrently
        texts = (arranged([line.decode(errors="replace") for line in dump]) for dump in dumps if dump)
        return bounded("\n\n".join(texts))


def arranged(lines: Sequence[str]) -> str:
    """Return a faulthandler dump with the main thread first instead of the newest one, limited in length."""
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
    """Return the first lines of a text, and a last line with the number of omitted lines, if any."""
    lines = [line[:LONGEST_LINE] for line in text.strip().splitlines()]
    kept, length = 0, 0
    while kept < min(len(lines), MOST_LINES) and length + len(lines[kept]) < MOST_CHARACTERS:
        length += len(lines[kept]) + 1
        kept += 1
    missing = [f"... and {len(lines) - kept} more lines"] if kept < len(lines) else []
    return "\n".join([*lines[:kept], *missing])


class TailSink:
    """Keeps the last lines of a stream: at most TAIL_LINES lines and about TAIL_BYTES bytes. Faulthandler's dumps are
    kept separately, in `dump`."""

    def __init__(self) -> None:
        self.dump = DumpSink()
        self._lines: collections.deque[bytes] = collections.deque(maxlen=TAIL_LINES)

    def write_line(self, line: bytes) -> None:
        """Add one line, with or without its terminator. Blank lines are dropped."""
        text = self.dump.take(line).rstrip(b"\r\n")
        if text.strip():
            self._lines.append(text[-TAIL_BYTES // TAIL_LINES :])

    def lines(self) -> tuple[str, ...]:
        """Return the lines as text, oldest first."""
        lines = tuple(self._lines)  # copied in one atomic step, because an abandoned pump may still add lines
        return tuple(line.decode(errors="replace") for line in lines)


class Channel:
    """One captured stream. Not thread-safe: the output pump feeds the channel, and other code may read it only after
    the pump has ended."""

    def __init__(self, plan: StreamPlan, console: ConsoleSink, filtered: FileSink | None, screen: TerminalLine) -> None:
        self._plan = plan
        self._screen = screen
        self._console = console
        self._filtered = filtered
        self._file = FileSink(plan.file) if plan.file else None
        self._tail = TailSink()
        self.path = plan.file
        self.written = 0  # bytes; grows while the worker writes
        self._pending = bytearray()  # not bytes, which each append, even of a single dot, would copy
        self._shows = plan.console
        self._shown = 0  # how much of the pending text is already on the console

    @property
    def unfinished(self) -> bool:
        """Whether unterminated text is waiting to be shown on the console. If the console is not a terminal, prefixed
        lines are shown only when they are complete."""
        may_show = self._shows and (self._plan.terminal or not self._plan.prefix)
        return may_show and len(self._pending) > self._shown

    @property
    def destination(self) -> int | None:
        """The descriptor of the file or, if there is no file, of the console. None if output goes to neither."""
        file = self._file.descriptor if self._file else None
        return file if file is not None or not self._shows else self._console.descriptor

    def feed(self, data: bytes) -> None:
        """Process output from the worker."""
        self.written += len(data)
        text, before = self._pending, len(self._pending)
        text += data
        unwritten = self._file.write(data) if self._file else b""
        if unwritten and not self._shows:
            self._shows, self._shown = True, len(text) - len(unwritten)  # the file contains all earlier text
        ends = [0, *(match.end() for match in _LINE_END.finditer(text, max(before - 1, 0)))]  # one may begin there
        if len(text) - ends[-1] > _LONGEST_LINE:
            ends.append(len(text))
        whole = bytes(text[: ends[-1]])
        lines = [whole[begin:end] for begin, end in itertools.pairwise(ends)]
        del text[: ends[-1]]
        self._show(lines)
        if lines and lines[-1].endswith(b"\r") and self.unfinished:
            self.show_unfinished()  # the new state of a progress bar

    def show_unfinished(self) -> None:
        """Show a line that has been unfinished for a while, such as a prompt or a counter."""
        text = bytes(self._pending)
        if self._plan.prefix:
            self._console.write(self._screen.line(self, self._plan.prefix, text, self._shown))
        else:
            self._console.write(text[self._shown :])
        self._shown = len(text)

    def close(self) -> None:
        """Show the last line, even if it is unterminated, and close the file."""
        rest, self._pending = bytes(self._pending), bytearray()
        self._show([_ended(rest) if self._plan.prefix else rest] if rest else [])
        if self._file:
            self._file.close()

    def tail(self) -> tuple[str, ...]:
        """Return the last lines, or an empty tuple if the plan does not keep them."""
        return self._tail.lines()

    def expect_dump(self) -> None:
        """Make `dump` ignore dumps that were written before this call. Thread-safe while the worker is running."""
        self._tail.dump = DumpSink()

    def dump(self) -> str:
        """Return the stacks that faulthandler has written (see `expect_dump`)."""
        return self._tail.dump.text()

    def _show(self, lines: list[bytes]) -> None:
        if self._plan.keeps_tail:
            for line in lines:
                self._tail.write_line(line)
        if self._shows and lines:
            self._show_on_console(lines)
        if self._filtered:
            chosen = [line for line in lines if any(text in line for text in self._plan.filters)]
            self._filtered.write(b"".join(self._plan.label + _ended(line) for line in chosen))

    def _show_on_console(self, lines: list[bytes]) -> None:
        """Show the lines on the console. Without a prefix, the bytes are passed on unchanged."""
        text = b"".join(lines)
        shown, self._shown = self._shown, max(self._shown - len(text), 0)
        if not self._plan.prefix:
            self._console.write(text[shown:])
        elif not self._plan.terminal:
            self._console.write(b"".join(self._plan.prefix + _ended(line) for line in lines))
        else:
            first = self._screen.line(self, self._plan.prefix, lines[0], shown)
            rest = (self._screen.line(self, self._plan.prefix, line, 0) for line in lines[1:])
            self._console.write(first + b"".join(rest))


def _ended(line: bytes) -> bytes:
    return line if line.endswith((b"\n", b"\r")) else line + b"\n"
