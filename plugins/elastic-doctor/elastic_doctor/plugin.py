"""Registers the `doctor` command and its health checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.plugin import CommandRecord, HealthCheckRecord, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.plugin import CheckResult, Context


def _run(context: Context, words: Sequence[str]) -> int:
    from elastic_doctor.command import run

    return run(context, words)


def _kernel(context: Context) -> CheckResult:
    from elastic_doctor import checks

    return checks.kernel(context)


def _process_limit(context: Context) -> CheckResult:
    from elastic_doctor import checks

    return checks.process_limit(context)


def _shared_memory(context: Context) -> CheckResult:
    from elastic_doctor import checks

    return checks.shared_memory(context)


@hookimpl
def elastic_health_checks() -> list[HealthCheckRecord]:
    return [
        HealthCheckRecord("kernel", "the kernel supports watching workers without threads", _kernel),
        HealthCheckRecord("process-limit", "the limit of processes and threads is sufficient", _process_limit),
        HealthCheckRecord("shared-memory", "/dev/shm has enough free space", _shared_memory),
    ]


@hookimpl
def elastic_commands() -> list[CommandRecord]:
    summary = "check this machine and its connections to other nodes before a run"
    return [CommandRecord("doctor", summary, _run, options=None)]  # the command parses all flags itself
