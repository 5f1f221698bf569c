"""A channel: one captured stream of one worker, cut into lines and handed to its sinks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from elastic_core.workers.sinks import ConsoleSink, FileSink, TailSink
from elastic_core.workers.stacks import DumpSink

if TYPE_CHECKING:
    from elastic_core.workers.sinks import Report
    from elastic_core.workers.streams import StreamPlan

# A bare carriage return ends a line too (progress bars), but at the end of the text a line feed may yet follow it.
_LINE_END = re.compile(rb"\r\n|\r(?=[^\n])|\n")
_LONGEST_LINE = 64 * 1024


class Channel:
    """Not thread-safe: fed by the output pump, read after it has ended."""

    def __init__(self, plan: StreamPlan, console: ConsoleSink, filtered: FileSink | None, report: Report) -> None:
        self._plan = plan
        self._console = console
        self._filtered = filtered
        self._file = FileSink(plan.file, report) if plan.file else None
        self._tail = TailSink() if plan.keeps_tail else None
        self._dump = DumpSink() if plan.keeps_tail else None
        self.taken = 0  # bytes; tells whether the worker still writes
        self._pending = b""
        self._shows = plan.console
        self._shown = 0  # how much of the pending text the console has seen already

    @property
    def unfinished(self) -> bool:
        """Whether text without a line end waits that the console may show (prefixed lines are shown whole)."""
        return self._shows and not self._plan.prefix and len(self._pending) > self._shown

    def feed(self, data: bytes) -> None:
        """Take what the worker wrote."""
        self.taken += len(data)
        text = self._pending + data
        unwritten = self._file.write(data) if self._file else b""
        if unwritten and not self._shows:
            self._shows, self._shown = True, len(text) - len(unwritten)  # the file has the rest
        lines, end = [], 0
        for match in _LINE_END.finditer(text, max(len(self._pending) - 1, 0)):  # there is none before its last byte
            lines.append(text[end : match.end()])
            end = match.end()
        if len(text) - end > _LONGEST_LINE:
            lines.append(text[end:])
            end = len(text)
        self._pending = text[end:]
        self._show(lines)

    def show_unfinished(self) -> None:
        """Show a line that stayed unfinished for a while (a prompt, a counter)."""
        self._console.write(self._pending[self._shown :])
        self._shown = len(self._pending)

    def close(self) -> None:
        """The stream has ended: the last line counts even without a line end."""
        rest, self._pending = self._pending, b""
        self._show([rest] if rest else [])
        if self._file:
            self._file.close()

    def tail(self) -> tuple[str, ...]:
        """The last lines, if the plan keeps them."""
        return self._tail.lines() if self._tail else ()

    def expect_dump(self) -> None:
        """Forget the dumps so far: only those that come from now on matter. From any thread, while the worker runs."""
        self._dump = self._dump and DumpSink()

    def dump(self) -> str:
        """The stacks that faulthandler has written; the last lines do not contain them."""
        return self._dump.text() if self._dump else ""

    def _show(self, lines: list[bytes]) -> None:
        dump = self._dump
        if self._tail:
            for line in lines:
                self._tail.write_line(dump.take(line) if dump else line)
        if self._shows and lines:
            self._show_on_console(lines)
        if self._filtered:
            chosen = [line for line in lines if any(text in line for text in self._plan.filters)]
            self._filtered.write(b"".join(map(_ended, chosen)))

    def _show_on_console(self, lines: list[bytes]) -> None:
        """Raw without a prefix; with one, every piece on a line of its own, so that no two workers share one."""
        if self._plan.prefix:
            self._console.write(b"".join(self._plan.prefix + _ended(line) for line in lines))
            return
        text = b"".join(lines)
        self._console.write(text[self._shown :])
        self._shown = max(self._shown - len(text), 0)


def _ended(line: bytes) -> bytes:
    return line if line.endswith((b"\n", b"\r")) else line + b"\n"
