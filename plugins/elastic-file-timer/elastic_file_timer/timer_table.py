"""The table of timers. It parses lines from the pipe into requests, and turns requests into timers that expire. This
module does no I/O."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING

from elastic_core.plugin import get_logger, later, process_runs, process_start_time
from elastic_file_timer.request import parse, without_torn_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from elastic_core.plugin import Clock, Instant
    from elastic_file_timer.request import FileTimerRequest

_SHOWN = 200


class TimerTable:
    """The timers of one job. Each has its own process and scope. A node has few timers, so a search looks at every one.

    Args:
        run_id: the job's run id; requests from other jobs are refused.
        most: maximum number of running timers.

    Attributes:
        taken: how many requests were accepted.
    """

    def __init__(self, run_id: str, clock: Clock, most: int = 100_000) -> None:
        self._run_id = run_id
        self._clock = clock
        self._most = most
        self._running: dict[tuple[int, str], tuple[Instant, FileTimerRequest]] = {}
        self._refused: Counter[str] = Counter()
        self.taken = 0

    @property
    def refused(self) -> Mapping[str, int]:
        """How many requests were refused, by kind."""
        return dict(self._refused)

    def read(self, lines: Sequence[bytes]) -> list[FileTimerRequest]:
        """Parse lines from the pipe."""
        return [request for request in map(self._parsed, filter(None, lines)) if request is not None]

    def _parsed(self, line: bytes) -> FileTimerRequest | None:
        whole = without_torn_part(line)
        if len(whole) != len(line):
            self._refuse("unreadable", line, "the line is not a complete request")
        try:
            return parse(whole) if whole else None
        except ValueError as error:
            self._refuse("unreadable", whole, str(error))
            return None

    def register(self, requests: Iterable[FileTimerRequest]) -> None:
        """Start or stop timers as requested, in the order of the requests."""
        for request in requests:
            self._enter(request)

    def expired(self, now: Instant) -> list[FileTimerRequest]:
        """Remove the timers whose deadline has passed. Returns those whose process still runs, earliest first."""
        due = sorted(((at, key) for key, (at, _) in self._running.items() if at <= now), key=itemgetter(0))
        removed = [self._running.pop(key)[1] for _, key in due]
        return [request for request in removed if process_runs(request.worker_pid, request.started)]

    def next_deadline(self) -> Instant | None:
        """Return when the next timer expires, or None if no timer is running."""
        return min((at for at, _ in self._running.values()), default=None)

    def forget(self, pids: set[int]) -> None:
        """Remove the timers of these processes and of all processes that have exited."""
        gone = {pid for pid in {pid for pid, _ in self._running} if pid in pids or process_start_time(pid) is None}
        self._running = {key: timer for key, timer in self._running.items() if key[0] not in gone}

    def _enter(self, request: FileTimerRequest) -> None:
        line = request.to_json().encode
        if request.run_id not in ("", self._run_id):
            self._refuse("another run", line(), f"expected the run id {self._run_id!r}, found {request.run_id!r}")
        elif request.releases:
            self.taken += 1
            self._running.pop((request.worker_pid, request.scope_id), None)
        elif len(self._running) >= self._most:
            self._refuse("too many timers", line(), f"{self._most} timers are running, which is the maximum")
        else:
            self.taken += 1
            self._acquire(request)

    def _acquire(self, request: FileTimerRequest) -> None:
        """Start a timer on the monotonic clock, unless the process has already exited."""
        deadline = request.deadline
        if deadline is None:
            left = request.expiration_time - self._clock.timestamp()  # before `now`: a delay must not shorten the timer
            deadline = later(self._clock.now(), left)
        request.deadline = deadline
        if request.started is None:
            request.started = process_start_time(request.worker_pid)
        if request.started is not None:
            self._running[request.worker_pid, request.scope_id] = (deadline, request)

    def _refuse(self, kind: str, line: bytes, reason: str) -> None:
        first = kind not in self._refused
        self._refused[kind] += 1
        if first:
            shown = line[:_SHOWN].decode("utf-8", "backslashreplace")
            get_logger().warning("timer request refused", kind=kind, reason=reason, request=shown)
