"""Registers the `doctor` command and its health checks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import CheckMoment, CommandRecord, HealthCheckRecord, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from elastic_core.plugin import CheckResult, Context

    Check = Callable[[Context], CheckResult | Iterable[CheckResult]]


def _run(context: Context, words: Sequence[str]) -> int:
    from elastic_doctor.command import run

    return run(context, words)


def _record(name: str, summary: str, module: str, function: str, **more: Any) -> HealthCheckRecord:
    def check(context: Context) -> CheckResult | Iterable[CheckResult]:
        run: Check = getattr(importlib.import_module(f"elastic_doctor.{module}"), function)
        return run(context)

    return HealthCheckRecord(name, summary, check, **more)


@hookimpl
def elastic_health_checks() -> list[HealthCheckRecord]:
    slow: Mapping[str, Any] = {"when": (CheckMoment.BEFORE_RUN,), "timeout": 150.0}  # several waits, one after another
    return [
        _record("python", "the Python interpreter", "checks", "python"),
        _record("kernel", "the kernel supports watching workers without threads", "checks", "kernel"),
        _record("process-limit", "the limit of processes and threads is sufficient", "checks", "process_limit"),
        _record("shared-memory", "/dev/shm has enough free space", "checks", "shared_memory"),
        _record("torch", "torch, its backends and its accelerators", "machine", "check_torch", **slow),
        _record("store", "the network near the rendezvous endpoint, and the store", "store", "check_store", **slow),
    ]


@hookimpl
def elastic_commands() -> list[CommandRecord]:
    summary = "check this machine and its connections to other nodes before a run"
    return [CommandRecord("doctor", summary, _run, options=None)]  # the command parses all flags itself
