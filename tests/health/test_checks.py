"""Plugins' health checks in a running job."""

from __future__ import annotations

import threading

import pytest
from elastic_testing import FakeClock, eventually

from elastic_core.errors import ConfigurationError, NotFoundError, Problem
from elastic_core.health.checks import FRESH, RunningChecks
from elastic_core.interfaces.health import CheckLevel, CheckResult, HealthCheck

LIMIT = 5.0


@pytest.fixture
def clock():
    return FakeClock(1_700_000_000.0)


def after(checks, clock, made):
    """The status once the check has ended."""
    checks.results()
    assert made.acquire(timeout=60)
    eventually(lambda: checks.results()[0].result)
    return checks.results()[0]


def counted(make):
    made = threading.Semaphore(0)

    def check():
        try:
            return make()
        finally:
            made.release()

    return HealthCheck("data", "the data is mounted", LIMIT, check), made


def test_check_runs_on_request_and_again_after_a_minute(clock):
    check, made = counted(lambda: CheckResult(CheckLevel.OK, "mounted"))
    checks = RunningChecks([check], clock)
    assert not made.acquire(blocking=False)
    first = after(checks, clock, made)
    assert (first.result, first.checked_at) == (CheckResult(CheckLevel.OK, "mounted"), 1_700_000_000.0)
    clock.advance(FRESH - 1)
    assert checks.results() == (first,)
    assert not made.acquire(blocking=False)
    clock.advance(1)
    assert checks.results() == (first,)  # the last result, while the next check runs
    assert made.acquire(timeout=60)


def raises(error):
    raise error


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("make", "message", "remedy"),
    [
        (lambda: "fine", "expected a CheckResult, found 'fine'", "report this to the plugin's authors"),
        (
            lambda: CheckResult("bad", "x"),
            "expected a CheckResult, found CheckResult(",
            "report this to the plugin's authors",
        ),
        (lambda: raises(NotFoundError("no such mount")), "no such mount", ""),
        (lambda: raises(KeyError()), "KeyError", ""),
        (lambda: raises(KeyboardInterrupt()), "KeyboardInterrupt", ""),
        (lambda: raises(Unprintable()), "Unprintable", ""),
        (lambda: CheckResult(CheckLevel.OK, Unprintable()), "RuntimeError: no text", ""),
        (lambda: raises(ConfigurationError(Problem("x", "not mounted; mount it"))), "not mounted", "mount it"),
    ],
)
def test_bad_check_is_a_failure(clock, make, message, remedy):
    check, made = counted(make)
    found = after(RunningChecks([check], clock), clock, made).result
    assert found.level is CheckLevel.FAILURE
    assert (message in found.message, found.remedy) == (True, remedy)


def test_every_result_of_a_check_is_shown(clock):
    results = (CheckResult(CheckLevel.OK, "mounted", name="/data"), CheckResult(CheckLevel.FAILURE, "no", "do", "/b"))
    check, made = counted(lambda: results)
    checks = RunningChecks([check], clock)
    after(checks, clock, made)
    shown = {status.name: status.result for status in checks.results()}
    assert shown == {
        f"{check.name}: /data": CheckResult(CheckLevel.OK, "mounted"),
        f"{check.name}: /b": CheckResult(CheckLevel.FAILURE, "no", "do"),
    }


def test_check_without_results_had_nothing_to_check(clock):
    check, made = counted(lambda: ())
    found = after(RunningChecks([check], clock), clock, made)
    assert (found.name, found.result) == (check.name, CheckResult(CheckLevel.SKIPPED, "nothing to check"))


def test_hanging_check_fails_and_is_not_repeated(clock):
    ends = threading.Event()
    check, made = counted(lambda: ends.wait(60) and CheckResult(CheckLevel.OK, "late"))
    checks = RunningChecks([check], clock)
    assert checks.results()[0].result is None
    clock.advance(LIMIT)
    assert checks.results()[0].result.message == "no answer within 5 s"
    clock.advance(FRESH)
    threads = threading.active_count()
    assert checks.results()[0].result.level is CheckLevel.FAILURE
    assert threading.active_count() == threads
    ends.set()
    assert after(checks, clock, made).result.level in CheckLevel
    eventually(lambda: checks.results()[0].result.level is CheckLevel.OK)
