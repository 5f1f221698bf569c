"""Registers the `doctor` command and its health checks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import CheckMoment, CommandRecord, ExitCode, HealthCheckRecord, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elastic_core.plugin import CheckResult, Context

    Check = Callable[[Context], CheckResult | Iterator[CheckResult]]


_ABOUT = """\
Checks whether a run with the same flags, variables and config file would work on this machine:
plugins, versions, limits, torch, names and addresses, and the connection to the store. It starts no
workers, changes nothing, and does not run the script. For each problem, it suggests a remedy. For
the flags of elastic run, see elastic run --help."""


def _run(context: Context, words: Sequence[str]) -> int:
    from elastic_doctor.command import run

    return run(context, words)


def _record(name: str, summary: str, module: str, function: str, **more: Any) -> HealthCheckRecord:
    def check(context: Context) -> CheckResult | Iterator[CheckResult]:
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
    from elastic_doctor.options import OPTIONS

    summary = "check this machine and its connections to other nodes before a run"
    return [
        CommandRecord(
            "doctor",
            summary,
            _run,
            OPTIONS,
            like_run=True,
            about=_ABOUT,
            example="elastic doctor --nnodes 2:4 --rdzv-endpoint node0:29400 --rdzv-id job7 train.py",
            codes={
                ExitCode.SUCCESS: "no faults; there may be warnings",
                ExitCode.BAD_CONFIGURATION: "a run would fail on this machine, or with these flags",
                ExitCode.RENDEZVOUS_TIMEOUT: "too few doctors joined (--peers)",
                ExitCode.STORE_UNREACHABLE: "the store does not answer, although a server listens, or --expect-store "
                "or --peers is set",
            },
        )
    ]
