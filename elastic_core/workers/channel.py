"""A channel: one captured stream of one worker, cut into lines and handed to its sinks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from elastic_core.workers.sinks import ConsoleSink, FileSink, TailSink

if TYPE_CHECKING:
    from elastic_core.workers.sinks import Report
    from elastic_core.workers.streams import StreamPlan

# A bare carriage return ends a line too (progress bars), but at the end of the text a line feed may yet follow it.
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r(?=[^\n])|\n)")
_LONGEST_LINE = 64 * 1024


class Channel:
    """Not thread-safe: fed by the output pump, read after it has ended."""

    def __init__(self, plan: StreamPlan, console: ConsoleSink, filtered: FileSink | None, report: Report) -> None:
        self._plan = plan
        self._console = console
        self._filtered = filtered
        self._file = FileSink(plan.file, report) if plan.file else None
        self._tail = TailSink()
        self._pending = b""
        self.rest_shown = 0  # how much of an unfinished line the console has seen already

    @property
    def unfinished(self) -> bool:
        """Whether text without a line end waits that the console may show (prefixed lines are shown whole)."""
        return self._plan.console and not self._plan.prefix and len(self._pending) > self.rest_shown

    def feed(self, data: bytes) -> None:
        """Take what the worker wrote."""
        unwritten = self._file.write(data) if self._file else b""
        text = self._pending + data
        end = 0
        for match in _LINE.finditer(text):
            self._tail.write_line(match.group())
            end = match.end()
        if len(text) - end > _LONGEST_LINE:
            end = len(text)
        self._pending = text[end:]
        self._show(text[:end], unwritten)

    def show_unfinished(self) -> None:
        """Show a line that nobody finished for a while (a prompt, a counter)."""
        self._console.write(self._pending[self.rest_shown :])
        self.rest_shown = len(self._pending)

    def close(self) -> None:
        """The stream has ended: the last line counts even without a line end."""
        rest, self._pending = self._pending, b""
        self._tail.write_line(rest)
        if rest:
            self._show(rest if not self._plan.prefix else rest + b"\n", b"")
        if self._file:
            self._file.close()

    def tail(self) -> tuple[str, ...]:
        """The last lines."""
        return self._tail.lines()

    def _show(self, lines: bytes, unwritten: bytes) -> None:
        """Whole lines to the console and the filtered file; what the log file refused goes to the console."""
        if self._plan.console:
            self._show_on_console(lines)
        elif unwritten:
            self._console.write(unwritten)
        if self._filtered and lines:
            chosen = [line for line in lines.splitlines(keepends=True) if any(f in line for f in self._plan.filters)]
            self._filtered.write(b"".join(chosen))

    def _show_on_console(self, lines: bytes) -> None:
        if not lines:
            return
        if self._plan.prefix:
            lines = b"".join(self._plan.prefix + line for line in lines.splitlines(keepends=True))
        else:
            lines, self.rest_shown = lines[self.rest_shown :], 0
        self._console.write(lines)
