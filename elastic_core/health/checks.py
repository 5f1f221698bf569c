"""Makes the health checks of plugins: each in its own thread, with a limit, and its result whatever happens."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError
from elastic_core.interfaces.health import CheckLevel, CheckResult, CheckStatus
from elastic_core.support.bounded import BackgroundCall, Late

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.health import HealthCheck

FRESH: Duration = 60.0
"""Seconds for which a result of a running job is good enough."""


def result_of(check: HealthCheck, call: BackgroundCall[object], patience: Duration) -> CheckResult:
    """The result of a check that has begun; it has failed if it does not end within `patience` seconds, raises, or
    returns something else."""
    try:
        found = call.result(patience)
    except Late:
        told = f"no answer within {check.timeout:g} s"
        return CheckResult(CheckLevel.FAILURE, told, "check the service or device that it examines")
    except ConfigurationError as error:
        message, _, remedy = error.problems[0].message.partition("; ")
        return CheckResult(CheckLevel.FAILURE, message, remedy)
    if isinstance(found, CheckResult) and isinstance(found.level, CheckLevel):
        return found
    return CheckResult(CheckLevel.FAILURE, f"expected a CheckResult, found {found!r}", "tell the plugin's authors")


class RunningChecks:
    """The health checks of a running job. They are made when somebody asks for their results. Any thread."""

    def __init__(self, checks: Sequence[HealthCheck], clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._checks = [_RunningCheck(check) for check in checks]

    def results(self) -> tuple[CheckStatus, ...]:
        """The last results, without waiting. Checks that began more than `FRESH` seconds ago begin again."""
        with self._lock:
            return tuple(check.look(self._clock) for check in self._checks)


class _RunningCheck:
    def __init__(self, check: HealthCheck) -> None:
        self._check = check
        self._last = CheckStatus(check.name, check.summary)
        self._call: BackgroundCall[object] | None = None
        self._begun: Instant | None = None
        self._began_at = 0.0

    def look(self, clock: Clock) -> CheckStatus:
        now = clock.now()
        if self._call is not None:
            ended = self._call.wait(0)
            if ended or expired(self._begun, now, self._check.timeout):
                result = result_of(self._check, self._call, 0)
                self._last = CheckStatus(self._check.name, self._check.summary, result, self._began_at)
            if ended:
                self._call = None
        elif expired(self._begun, now, FRESH):  # a check that hangs is not made a second time
            self._begun, self._began_at = now, clock.timestamp()
            self._call = BackgroundCall(self._check.make, "elastic health check")
        return self._last


def expired(begun: Instant | None, now: Instant, limit: Duration) -> bool:
    """Whether more than `limit` seconds have passed since it began; true if it has not begun yet."""
    return begun is None or now - begun >= limit
