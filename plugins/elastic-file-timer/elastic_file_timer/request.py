"""What goes through the pipe: one line of JSON for each request.

The fields that torch's client writes, and three of our own: `run_id`, the job; `started`, which tells a process from a
later one of the same id; `deadline`, on the monotonic clock. That clock is the same for all processes of a machine, and
a pipe does not leave the machine; so nobody is killed because somebody has set the time. What comes in was written by
anybody who may write to the pipe: every field is checked.
"""

from __future__ import annotations

import json
import select
from dataclasses import dataclass
from typing import Any, ClassVar

from elastic_core.plugin import Instant, TimerRequest, in_one_line

VERSION = 1
LONGEST = select.PIPE_BUF
"""Bytes of a request with the end of its line: what the kernel writes in one piece."""

_BEGINNING = b'{"version"'
_SHORTEST = len(b'{"version":1,"pid":1,"scope_id":"","expiration_time":0,"signal":0}')
_PID_MAX = 1 << 22
_SIGNAL_MAX = 64
_SECONDS_MAX = 1e12


@dataclass(init=False)
class FileTimerRequest(TimerRequest):
    """A timer is acquired, or, with an `expiration_time` of less than 0, released.

    Args:
        worker_pid: the process that asks; also called `worker_id`.
        scope_id: what the timer is for.
        expiration_time: seconds since the epoch.
        signal: what ends the process when the timer expires; 0 or less: nothing does.
        run_id: the job; empty where the client does not know it.
        started: when the process was started, as the kernel counts; None where the client does not know it.
        deadline: the expiration on the machine's monotonic clock; None from a client that has the time of day alone.
    """

    version: ClassVar[int] = VERSION
    signal: int
    run_id: str
    started: int | None
    deadline: Instant | None

    def __init__(
        self,
        worker_pid: int,
        scope_id: str,
        expiration_time: float,
        signal: int = 0,
        run_id: str = "",
        started: int | None = None,
        deadline: Instant | None = None,
    ) -> None:
        super().__init__(worker_pid, scope_id, expiration_time)
        self.signal = signal
        self.run_id = run_id
        self.started = started
        self.deadline = deadline

    @property
    def worker_pid(self) -> int:
        """The process that asks."""
        return int(self.worker_id)

    @property
    def releases(self) -> bool:
        """Whether the timer is to stop."""
        return self.expiration_time < 0

    def to_json(self) -> str:
        """The line, without its end."""
        return json.dumps(
            {
                "version": self.version,
                "pid": self.worker_id,
                "scope_id": self.scope_id,
                "expiration_time": self.expiration_time,
                "signal": self.signal,
                "run_id": self.run_id,
                "started": self.started,
                "deadline": self.deadline,
            }
        )


def may_be_request(line: bytes) -> bool:
    """Whether it is worth reading: long enough, with the beginning and the end of a request. What is not is refused
    without more work, for anybody may write any number of lines."""
    return len(line) >= _SHORTEST and _BEGINNING in line and line.rstrip(b" \t\r").endswith(b"}")


def without_torn_part(line: bytes) -> bytes:
    """What was written last, if a writer before it did not come to the end of its line; nothing if that is no request.
    Takes next to no time, whatever is in the line."""
    begin = line.rfind(_BEGINNING)
    return line[begin:] if begin >= 0 else b""


def parse(line: bytes) -> FileTimerRequest:
    """The request in one line.

    Raises:
        ValueError: it is none; the message says why.
    """
    if len(line) > LONGEST:
        raise ValueError(f"expected at most {LONGEST} bytes, found {len(line)}")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON, found an error: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"expected an object of JSON, found {type(fields).__name__}")
    if fields.get("version") != VERSION:
        raise ValueError(f"expected version {VERSION}, found {fields.get('version')!r}")
    return FileTimerRequest(
        worker_pid=_whole(fields, "pid", 1, _PID_MAX),
        scope_id=in_one_line(_text(fields, "scope_id")),
        expiration_time=_number(fields, "expiration_time"),
        signal=_whole(fields, "signal", -_SIGNAL_MAX, _SIGNAL_MAX),
        run_id=_text(fields, "run_id") if "run_id" in fields else "",
        started=None if fields.get("started") is None else _whole(fields, "started", 0, 1 << 63),
        deadline=None if fields.get("deadline") is None else Instant(_number(fields, "deadline")),
    )


def _whole(fields: dict[str, Any], name: str, least: int, most: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"expected in {name} a whole number from {least} to {most}, found {_short(value)}")
    return value


def _number(fields: dict[str, Any], name: str) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _SECONDS_MAX:
        raise ValueError(f"expected in {name} seconds, found {_short(value)}")
    return float(value)


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ValueError(f"expected text in {name}, found {_short(value)}")
    return value


def _short(value: object) -> str:
    try:
        return repr(value)[:80]
    except ValueError:  # a number with more digits than Python prints
        return "a very large number"


class Lines:
    """A stream of bytes as lines. Of a line that does not end it keeps the last bytes only: as much as a request can
    have, which may come after what somebody else has left behind."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that have ended by now, without their ends."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-LONGEST:]
        return lines
