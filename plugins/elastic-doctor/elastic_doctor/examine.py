"""Examines the plan of a run: what it selects, and the health checks of all plugins, which run at the same time. The
findings have a fixed order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.diagnostics import StatusBoard, notice_sources, own_version, results_of
from elastic_core.plugin import BackgroundCall, CheckMoment, ConfigurationError, SystemClock
from elastic_doctor import machine
from elastic_doctor.finding import Check, fault, level_of
from elastic_doctor.options import DoctorOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elastic_core.diagnostics import Plan
    from elastic_core.plugin import CheckResult, Clock, HealthCheck, Work

_OURS = "elastic-doctor"


def findings(plan: Plan, options: DoctorOptions, work: Work | None) -> tuple[CheckResult, ...]:
    """Return the findings about everything that a run with this plan needs, in the order of the report. Problems
    are findings, and raise no errors. `work` is what the workers would run, if a script was given."""
    checks = plan.health_checks(CheckMoment.BEFORE_RUN, {_OURS: options._asdict()})
    return in_order([*of_plan(plan, work), *of_checks(checks, options, SystemClock())])


def in_order(found: Sequence[CheckResult]) -> tuple[CheckResult, ...]:
    """Return the findings in the order of the report, without those that other findings contradict."""
    seen = {(item.name, level_of(item)) for item in found}
    if (Check.BACKEND, "fault") in seen:
        found = [item for item in found if (item.name, level_of(item)) != (Check.BACKEND, "ok")]
    if any(name == Check.RUN_ID for name, _ in seen) and (Check.CONNECTION, "ok") not in seen:
        found = [item for item in found if item.name != Check.CONNECTION]  # a doctor has served the store since
    order = [check.value for check in Check]
    return tuple(sorted(found, key=lambda item: order.index(item.name)))


def of_plan(plan: Plan, work: Work | None) -> Iterator[CheckResult]:
    """Yield the findings about the plugins and what the settings select."""
    yield machine.judged_versions(machine.versions_of(plan.manager, own_version()))
    yield from machine.judged_plugins(plan.manager)
    yield from machine.judged_choices(plan)
    if plan.error is not None:
        return  # `judged_choices` reports it
    board = StatusBoard("", "", "", 0, SystemClock())
    makers: list[Callable[[], object]] = [
        plan.made_watchdog,
        lambda: plan.made_health_endpoint(board),
        plan.made_rank_policy,
        lambda: notice_sources(plan.contexts, lambda seconds: False),
    ]
    if work is not None:
        makers.append(lambda: getattr(plan.start_with(work), "close", bool)())
    for make in makers:
        try:
            with plan.naming_origins():
                make()
        except ConfigurationError as error:
            yield from (fault(Check.BACKEND, str(problem), "correct it") for problem in error.problems)


def of_checks(checks: Sequence[HealthCheck], options: DoctorOptions, clock: Clock) -> Iterator[CheckResult]:
    """Run the health checks at the same time, and yield their results. Our own checks get more time if `options` allow
    more for the calls that they make."""
    begun, factor = clock.now(), max(1.0, options.timeout / DoctorOptions().timeout)
    for_peers = 4 * options.peers_timeout if options.peers else 0.0
    calls = [(check, BackgroundCall(check.make)) for check in checks]
    for check, call in calls:
        ours = check.plugin == _OURS
        limited = replace(check, timeout=factor * check.timeout + for_peers) if ours else check
        for result in results_of(limited, call, max(0.0, limited.timeout - (clock.now() - begun))):
            if ours:
                yield replace(result, name=result.name or check.name)
            else:
                text = ": ".join(filter(None, (check.name, result.name, result.message)))
                yield replace(result, name=Check.HEALTH_CHECK.value, message=text)
