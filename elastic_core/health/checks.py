"""Runs plugins' health checks, each in a separate thread with a time limit, so that every check has a result."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.clock import LONG_AGO
from elastic_core.errors import ConfigurationError, InvalidPlugin, described_error
from elastic_core.interfaces.health import CheckLevel, CheckResult, CheckStatus
from elastic_core.support.bounded import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.clock import Clock, Duration
    from elastic_core.interfaces.health import HealthCheck

FRESH: Duration = 60.0
"""The minimum number of seconds between two starts of the same check in a running job."""


def results_of(check: HealthCheck, call: BackgroundCall[object], patience: Duration) -> tuple[CheckResult, ...]:
    """Return the results of a started check. The only result is a failure if the check raises an error, returns
    an invalid value, or does not finish within `patience` seconds."""
    if not call.wait(patience):
        message = f"no answer within {check.timeout:g} s"
        return (CheckResult(CheckLevel.FAILURE, message, "inspect the service or device that is checked"),)
    try:
        found = call.result()
        nothing = CheckResult(CheckLevel.SKIPPED, "nothing to check")
        return tuple(map(_valid, found if isinstance(found, tuple) else (found,))) or (nothing,)
    except ConfigurationError as error:
        message, _, remedy = error.problems[0].message.partition("; ")
        return (CheckResult(CheckLevel.FAILURE, message, remedy),)
    except InvalidPlugin as error:
        return (CheckResult(CheckLevel.FAILURE, str(error), "report this to the plugin's authors"),)
    except BaseException as error:  # noqa: BLE001 - whatever a plugin raises, the other checks are shown
        return (CheckResult(CheckLevel.FAILURE, described_error(error)),)


def _valid(found: object) -> CheckResult:
    if isinstance(found, CheckResult) and isinstance(found.level, CheckLevel):
        return CheckResult(found.level, str(found.message), str(found.remedy), str(found.name))
    raise InvalidPlugin(f"expected a CheckResult, found {found!r}")


class RunningChecks:
    """The health checks of a running job, which run only when results are requested. Thread-safe."""

    def __init__(self, checks: Sequence[HealthCheck], clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._checks = [_RunningCheck(check) for check in checks]

    def results(self) -> tuple[CheckStatus, ...]:
        """Return the latest results without waiting. A check whose last run began more than `FRESH` seconds ago is
        started again."""
        with self._lock:
            return tuple(status for check in self._checks for status in check.look(self._clock))


class _RunningCheck:
    def __init__(self, check: HealthCheck) -> None:
        self._check = check
        self._last: tuple[CheckStatus, ...] = (CheckStatus(check.name, check.summary),)
        self._call: BackgroundCall[object] | None = None
        self._begun = LONG_AGO
        self._began_at = 0.0

    def look(self, clock: Clock) -> tuple[CheckStatus, ...]:
        now = clock.now()
        if self._call is not None:
            ended = self._call.wait(0)
            if ended or now - self._begun >= self._check.timeout:
                results = results_of(self._check, self._call, 0)
                self._last = tuple(map(self._status, results))
            if ended:
                self._call = None
        elif now - self._begun >= FRESH:  # a hung check is not restarted
            self._begun, self._began_at = now, clock.timestamp()
            self._call = BackgroundCall(self._check.make, "elastic health check")
        return self._last

    def _status(self, result: CheckResult) -> CheckStatus:
        name = f"{self._check.name}: {result.name}" if result.name else self._check.name
        return CheckStatus(name, self._check.summary, replace(result, name=""), self._began_at)
