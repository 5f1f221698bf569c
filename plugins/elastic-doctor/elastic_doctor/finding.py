"""The doctor's findings, their exit code, and their rendering as text and JSON. This module does no I/O."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import CheckLevel, CheckResult, ExitCode, in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from elastic_core.plugin import Settings

VERSION = 1
"""The schema version of `as_dict`. It increases when a field is removed or changes its meaning."""


class Check(str, enum.Enum):
    """The checks, in the order of the report."""

    VERSIONS = "versions"
    PLUGINS = "plugins"
    BACKEND = "backend"
    PYTHON = "python"
    KERNEL = "kernel"
    FILE_LIMIT = "file-limit"
    PROCESS_LIMIT = "process-limit"
    SHARED_MEMORY = "shared-memory"
    TORCH = "torch"
    ACCELERATORS = "accelerators"
    HEALTH_CHECK = "health-check"
    NAME = "name"
    REVERSE_LOOKUP = "reverse-lookup"
    ADDRESS = "address"
    PORT = "port"
    HEALTH_PORT = "health-port"
    CONNECTION = "connection"
    STORE = "store"
    RUN_ID = "run-id"
    SECRET = "secret"
    PEERS = "peers"
    PEER_VERSIONS = "peer-versions"


_OTHER_CODES = {Check.STORE: ExitCode.STORE_UNREACHABLE, Check.PEERS: ExitCode.RENDEZVOUS_TIMEOUT}


_LEVELS = {CheckLevel.OK: "ok", CheckLevel.SKIPPED: "note", CheckLevel.WARNING: "warning", CheckLevel.FAILURE: "fault"}


def ok(check: Check, message: str) -> CheckResult:
    return CheckResult(CheckLevel.OK, message, name=check.value)


def note(check: Check, message: str, remedy: str = "") -> CheckResult:
    return CheckResult(CheckLevel.OK if remedy else CheckLevel.SKIPPED, message, remedy, check.value)


def warning(check: Check, message: str, remedy: str) -> CheckResult:
    return CheckResult(CheckLevel.WARNING, message, remedy, check.value)


def fault(check: Check, message: str, remedy: str) -> CheckResult:
    return CheckResult(CheckLevel.FAILURE, message, remedy, check.value)


def level_of(finding: CheckResult) -> str:
    """Return the level to show. A "note" is harmless: there was nothing to check, or its remedy is optional. With a
    "warning", the run may start, but may have problems. A "fault" means that the run would not work."""
    return "note" if finding.level is CheckLevel.OK and finding.remedy else _LEVELS[finding.level]


def exit_code_of(findings: Iterable[CheckResult]) -> ExitCode:
    """Return the exit code for the most urgent fault. Faults of the machine or the configuration are the most urgent,
    followed by faults of the store and faults that concern peers."""
    at_fault = {finding.name for finding in findings if finding.level is CheckLevel.FAILURE}
    if at_fault - _OTHER_CODES.keys():
        return ExitCode.BAD_CONFIGURATION
    return next((code for check, code in _OTHER_CODES.items() if check in at_fault), ExitCode.SUCCESS)


def as_dict(host: str, settings: Settings, findings: Sequence[CheckResult]) -> dict[str, Any]:
    """Return the report for `host` as JSON values. docs/reference/doctor.md describes the schema."""
    return {
        "version": VERSION,
        "host": host,
        "run_id": settings.rdzv_id,
        "backend": settings.rdzv_backend,
        "endpoint": settings.rdzv_endpoint,
        "min_nodes": settings.nnodes.min,
        "max_nodes": settings.nnodes.max,
        "exit_code": int(exit_code_of(findings)),
        "findings": [
            {"level": level_of(item), "check": item.name, "message": item.message, "advice": item.remedy}
            for item in findings
        ],
    }


def as_text(host: str, settings: Settings, findings: Sequence[CheckResult]) -> str:
    """Return the report for `host` as text."""
    where = f"{settings.rdzv_backend} at {settings.rdzv_endpoint}" if settings.rdzv_endpoint else settings.rdzv_backend
    lines = [f"{host}: a run with {where}, nodes {settings.nnodes}", ""]
    wide = max((len(item.name) for item in findings), default=0)
    for item in findings:
        lines.append(f"{level_of(item):7}  {item.name:{wide}}  {item.message}")
        if item.remedy:
            lines.append(f"{'':{wide + 9}}  -> {item.remedy}")
    return "\n".join([*map(in_one_line, lines), "", _summary(findings)]) + "\n"


def _summary(findings: Sequence[CheckResult]) -> str:
    levels = [level_of(item) for item in findings]
    counts = [(level, levels.count(level)) for level in ("fault", "warning")]
    listed = ", ".join(f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts if count)
    if counts[0][1]:
        return f"{listed}: the run would fail"
    return f"{listed}, no faults" if listed else "no problems found"
