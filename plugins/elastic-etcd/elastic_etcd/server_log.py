"""The end of an etcd's log, for people: etcd writes an object of JSON per line, and says in plain text how it fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST = 300


class ServerLog:
    """The log of a server that was started, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def text(self) -> str:
        """All of it; empty if there is none."""
        try:
            return self._path.read_text(errors="replace")
        except OSError:
            return ""

    def tail(self, lines: int) -> list[str]:
        """The last lines, without what is of use to machines only."""
        return [plain(line) for line in self.text().splitlines()[-lines:]]

    def shown(self, lines: int = 20) -> str:
        """The last lines as an error shows them; empty if there are none."""
        tail = self.tail(lines)
        return "; the end of its log:\n" + "\n".join(f"    {line}" for line in tail) if tail else ""


def plain(line: str) -> str:
    """One line: time, level, message and error, of a line of JSON; any other as it is. Cut at 300 characters."""
    try:
        told = json.loads(line)
    except ValueError:
        told = None
    if isinstance(told, dict):
        line = " ".join(str(told[name]) for name in ("ts", "level", "msg", "error") if name in told)
    return line[:_LONGEST]
