"""The tables of options and exit codes in the how-to pages match the code."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from elastic_core.errors import ExitCode
from elastic_core.hooks.manager import PluginManager
from elastic_core.plugin import HealthEndpointRecord

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


TOLD = re.compile(r"\bexit(?:s|ed)?(?: with)?(?: codes?)? (\d+)|\b(?:ends?|ended)(?: the agent)? with (\d+)")
TABLE = re.compile(r"^\| exit code \| .*\n\|[-|]+\n((?:\|.*\n)+)", re.M)


def codes_told(text):
    """Return the exit codes in sentences, and in the first column of tables."""
    rows = [row for table in TABLE.findall(text) for row in re.findall(r"^\| (\d+) ", table, re.M)]
    return {int(one or other) for one, other in TOLD.findall(text)} | {int(row) for row in rows}


def section(page, title):
    """Return the text below a second-level heading."""
    return (DOCS / page).read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_health_options_are_listed_with_their_defaults():
    pytest.importorskip("elastic_http_health")
    record = PluginManager.load(os.environ).select(HealthEndpointRecord, "http")
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| \S", section("reference/health.md", "Options"), re.M)
    defaults = {option.name: option.default for option in record.options}
    shown = {name: "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
             for name, value in defaults.items()}  # fmt: skip
    assert {name: default.strip("`") for name, default in rows} == shown


def test_troubleshooting_covers_every_exit_code_but_success():
    assert codes_told((DOCS / "guides" / "troubleshooting.md").read_text()) == set(ExitCode) - {ExitCode.SUCCESS}
