"""A stream of bytes as lines."""

from __future__ import annotations

from elastic_file_timer.request import LONGEST


class Lines:
    """Of a line that does not end it keeps the last bytes only: as much as a request can have, which may come after
    what somebody else has left behind."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that have ended by now, without their ends."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-LONGEST:]
        return lines
