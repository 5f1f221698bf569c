"""Findings as text for people, and as JSON values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.operate.doctor.finding import Level, exit_code_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elastic_core.config import Settings
    from elastic_core.operate.doctor.finding import Finding

VERSION = 1
"""Of the schema of `as_dict`; grows when a field changes its meaning or goes away, not when one is added."""


@dataclass(frozen=True)
class Report:
    """What `elastic doctor` found on `host` for the run of these settings."""

    host: str
    settings: Settings
    findings: Sequence[Finding]


def as_dict(report: Report) -> dict[str, Any]:
    """The schema is described in docs/reference/doctor.md."""
    settings = report.settings
    return {
        "version": VERSION,
        "host": report.host,
        "run_id": settings.rdzv_id,
        "backend": settings.rdzv_backend,
        "endpoint": settings.rdzv_endpoint,
        "min_nodes": settings.nnodes.min,
        "max_nodes": settings.nnodes.max,
        "exit_code": int(exit_code_of(report.findings)),
        "findings": [
            {"level": item.level.value, "check": item.check.value, "told": item.told, "advice": item.advice}
            for item in report.findings
        ],
    }


def as_text(report: Report) -> str:
    """What `elastic doctor` prints."""
    settings = report.settings
    where = f"{settings.rdzv_backend} at {settings.rdzv_endpoint}" if settings.rdzv_endpoint else settings.rdzv_backend
    head = f"{report.host}: a run with {where}, nodes {settings.nnodes}"
    return "\n".join([head, "", *_rows(report.findings), "", _summary(report.findings)]) + "\n"


def _rows(findings: Sequence[Finding]) -> Iterator[str]:
    wide = max((len(item.check.value) for item in findings), default=0)
    for item in findings:
        yield f"{item.level.value:7}  {item.check.value:{wide}}  {item.told}"
        if item.advice:
            yield f"{'':{wide + 9}}  -> {item.advice}"


def _summary(findings: Sequence[Finding]) -> str:
    counts = [(level, sum(item.level is level for item in findings)) for level in (Level.FAULT, Level.WARNING)]
    told = ", ".join(f"{count} {level.value}{'' if count == 1 else 's'}" for level, count in counts if count)
    if counts[0][1]:
        return f"{told}: the run would not work like this"
    return f"{told} and no fault" if told else "nothing is wrong"
