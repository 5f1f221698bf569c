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


def _record(name: str, summary: str) -> HealthCheckRecord:
    def check(context: Context) -> CheckResult:
        from elastic_doctor.checks import CHECKS

        return CHECKS[name](context)

    return HealthCheckRecord(name, summary, check)


@hookimpl
def elastic_health_checks() -> list[HealthCheckRecord]:
    return [
        _record("python", "the Python interpreter"),
        _record("kernel", "the kernel supports watching workers without threads"),
        _record("process-limit", "the limit of processes and threads is sufficient"),
        _record("shared-memory", "/dev/shm has enough free space"),
    ]


@hookimpl
def elastic_commands() -> list[CommandRecord]:
    summary = "check this machine and its connections to other nodes before a run"
    return [CommandRecord("doctor", summary, _run, options=None)]  # the command parses all flags itself
