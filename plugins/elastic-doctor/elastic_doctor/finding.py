"""The doctor's findings, their exit code, and their rendering as text and JSON. This module does no I/O."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import ExitCode, in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from elastic_core.plugin import Settings

VERSION = 1
"""The schema version of `as_dict`. It increases when a field is removed or changes its meaning."""


class Level(str, enum.Enum):
    """How serious a finding is. NOTE is harmless. WARNING means that the run may start, but may have problems. FAULT
    means that the run would not work."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAULT = "fault"


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


@dataclass(frozen=True)
class Finding:
    """The result of one check. `message` describes the observation. `advice` is the remedy, and is empty if none is
    needed."""

    level: Level
    check: Check
    message: str
    advice: str = ""


_OTHER_CODES = {Check.STORE: ExitCode.STORE_UNREACHABLE, Check.PEERS: ExitCode.RENDEZVOUS_TIMEOUT}


def ok(check: Check, message: str) -> Finding:
    return Finding(Level.OK, check, message)


def note(check: Check, message: str, advice: str = "") -> Finding:
    return Finding(Level.NOTE, check, message, advice)


def warning(check: Check, message: str, advice: str) -> Finding:
    return Finding(Level.WARNING, check, message, advice)


def fault(check: Check, message: str, advice: str) -> Finding:
    return Finding(Level.FAULT, check, message, advice)


def exit_code_of(findings: Iterable[Finding]) -> ExitCode:
    """Return the exit code for the most urgent fault. Faults of the machine or the configuration are the most urgent,
    followed by faults of the store and faults that concern peers."""
    at_fault = {finding.check for finding in findings if finding.level is Level.FAULT}
    if at_fault - _OTHER_CODES.keys():
        return ExitCode.BAD_CONFIGURATION
    return next((code for check, code in _OTHER_CODES.items() if check in at_fault), ExitCode.SUCCESS)


def as_dict(host: str, settings: Settings, findings: Sequence[Finding]) -> dict[str, Any]:
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
            {"level": item.level.value, "check": item.check.value, "message": item.message, "advice": item.advice}
            for item in findings
        ],
    }


def as_text(host: str, settings: Settings, findings: Sequence[Finding]) -> str:
    """Return the report for `host` as text."""
    where = f"{settings.rdzv_backend} at {settings.rdzv_endpoint}" if settings.rdzv_endpoint else settings.rdzv_backend
    lines = [f"{host}: a run with {where}, nodes {settings.nnodes}", ""]
    wide = max((len(item.check.value) for item in findings), default=0)
    for item in findings:
        lines.append(f"{item.level.value:7}  {item.check.value:{wide}}  {item.message}")
        if item.advice:
            lines.append(f"{'':{wide + 9}}  -> {item.advice}")
    return "\n".join([*map(in_one_line, lines), "", _summary(findings)]) + "\n"


def _summary(findings: Sequence[Finding]) -> str:
    counts = [(level, sum(item.level is level for item in findings)) for level in (Level.FAULT, Level.WARNING)]
    listed = ", ".join(f"{count} {level.value}{'' if count == 1 else 's'}" for level, count in counts if count)
    if counts[0][1]:
        return f"{listed}: the run would fail"
    return f"{listed}, no faults" if listed else "no problems found"
