"""Generates the etcd-legacy protocol page, with its state diagram, from the backend's transition table."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).parents[1] / "plugins/elastic-etcd-legacy/elastic_etcd_legacy/table.py"


def page(note: str) -> str:
    """Return the page. `note` is a comment that marks it as generated."""
    table = runpy.run_path(str(_TABLE))  # from the file, so that the plugin need not be installed
    return "\n".join([*_head(note), *_diagram(table["TRANSITIONS"]), *_rows(table["TRANSITIONS"])])


def _head(note: str) -> list[str]:
    return [
        "# The protocol of etcd-legacy\n",
        note,
        "The nodes of a job share one etcd document. The document either does not exist or is in one of five states.",
        "This page lists all transitions between them. To learn how to use the backend, see",
        "[elastic-etcd-legacy](../../plugins/elastic-etcd-legacy/README.md).\n",
    ]


def _diagram(transitions: Any) -> list[str]:
    arrows: dict[tuple[str, str], list[str]] = {}
    for row in transitions:
        arrows.setdefault((_state(row.before), _state(row.after)), []).append(row.event.value)
    lines = [f"    {before} --> {after}: {', '.join(events)}" for (before, after), events in arrows.items()]
    return ["```mermaid", "stateDiagram-v2", *lines, "```", ""]


def _state(status: Any) -> str:
    return "none" if status is None else str(status.value)


def _rows(transitions: Any) -> list[str]:
    rows = [
        f"| {_state(row.before)} | {row.event.value} | {_state(row.after)} | {row.when} | {_effects(row)} |"
        for row in transitions
    ]
    return ["| state | event | next state | when | effects |", "|---|---|---|---|---|", *rows, ""]


def _effects(row: Any) -> str:
    return "; ".join(effect.value for effect in row.effects)
