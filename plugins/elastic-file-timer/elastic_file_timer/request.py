"""The format of requests in the pipe. Each request is one line of JSON.

Requests have three fields that torch's client does not send. `run_id` is the job's run id. `started` is the process's
start time, in case its process id is reused. `deadline` is the expiration time on the monotonic clock. All processes on
a machine share that clock, so a change of the system time never causes a worker to be killed.

Any process with access to the pipe may write to it, so every field is checked.
"""

from __future__ import annotations

import json
import select
from dataclasses import dataclass
from typing import Any, ClassVar

from elastic_core.plugin import Instant, TimerRequest, in_one_line

VERSION = 1
LONGEST = select.PIPE_BUF
"""The maximum number of bytes in a request, including its newline. The kernel writes up to this many bytes
atomically."""

_BEGINNING = b'{"version"'
_PID_MAX = 1 << 22
_SIGNAL_MAX = 64
_SECONDS_MAX = 1e12


@dataclass(init=False)
class FileTimerRequest(TimerRequest):
    """A request to acquire a timer or, with a negative `expiration_time`, to release it.

    Args:
        worker_pid: the requesting process's id; also called `worker_id`.
        scope_id: identifies the timer within the process.
        expiration_time: seconds since the epoch.
        signal: the signal to send to the process when the timer expires (0 or less: no signal).
        run_id: the job's run id; empty if the client does not know it.
        started: the start time of the process in the kernel's units; None if the client does not know it.
        deadline: the expiration time on the monotonic clock; None from a client that sends only `expiration_time`.
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
        """The process id of the requesting process."""
        return int(self.worker_id)

    @property
    def releases(self) -> bool:
        """Whether the request releases the timer."""
        return self.expiration_time < 0

    def to_json(self) -> str:
        """Return the request as a line of JSON, without a newline."""
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


def without_torn_part(line: bytes) -> bytes:
    """Return the last request in the line, or an empty string if there is none. The request may be preceded by an
    incomplete one, left by a writer that died. Fast regardless of the content."""
    begin = line.rfind(_BEGINNING)
    return line[begin:] if begin >= 0 else b""


def parse(line: bytes) -> FileTimerRequest:
    """Parse a line as a request.

    Raises:
        ValueError: the line is not a valid request.
    """
    if len(line) > LONGEST:
        raise ValueError(f"expected at most {LONGEST} bytes, found {len(line)}")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"invalid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, found {type(fields).__name__}")
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
        raise ValueError(f"{name}: expected an integer from {least} to {most}, found {_short(value)}")
    return value


def _number(fields: dict[str, Any], name: str) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _SECONDS_MAX:
        raise ValueError(f"{name}: expected a number of seconds, found {_short(value)}")
    return float(value)


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected a string, found {_short(value)}")
    return value


def _short(value: object) -> str:
    try:
        return repr(value)[:80]
    except ValueError:  # the number has more digits than Python prints
        return "a very large number"


class Lines:
    """Splits a byte stream into lines. If a line is unfinished, only its last `LONGEST` bytes are kept. A request may
    follow another writer's incomplete line, but is never longer than that."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines completed by this data, without newlines."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-LONGEST:]
        return lines
