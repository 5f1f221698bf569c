"""What how-to pages tell of options and exit codes is what the code has, both ways."""

from __future__ import annotations

import ast
import os
import re
import signal
from pathlib import Path

import pytest

from elastic_core.errors import ExitCode
from elastic_core.hooks import HealthEndpointRecord
from elastic_core.hooks.manager import PluginManager
from elastic_core.log import EVENTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SIGNALS = {128 + number for number in signal.valid_signals()}
TOLD = re.compile(r"\bexit(?:s|ed)?(?: codes?)?(?: with)? (\d+)|\b(?:ends?|ended)(?: the agent)? with (\d+)")


TABLE = re.compile(r"^\| exit code \| .*\n\|[-|]+\n((?:\|.*\n)+)", re.M)


def codes_told(text):
    """In sentences, and in the first column of tables of exit codes."""
    rows = [row for table in TABLE.findall(text) for row in re.findall(r"^\| (\d+) ", table, re.M)]
    return {int(one or other) for one, other in TOLD.findall(text)} | {int(row) for row in rows}


def section(page, title):
    """The text below a heading of the second rank."""
    return (DOCS / page).read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_options_of_the_health_endpoint_are_told_with_their_defaults():
    pytest.importorskip("elastic_http_health")
    record = PluginManager.load(os.environ).select(HealthEndpointRecord, "http")
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| \S", section("health.md", "Options"), re.M)
    defaults = {option.name: option.default for option in record.options}
    shown = {name: "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
             for name, value in defaults.items()}  # fmt: skip
    assert {name: default.strip("`") for name, default in rows} == shown


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_an_exit_code_that_is_told_is_one(page):
    assert codes_told(page.read_text()) - SIGNALS - set(ExitCode) == set()


def test_the_table_of_troubles_has_every_exit_code_but_success():
    assert codes_told((DOCS / "operations.md").read_text()) == set(ExitCode) - {ExitCode.SUCCESS}


def test_the_exit_codes_for_torchruns_users_are_codes():
    row = next(line for line in (DOCS / "migrate-from-torchrun.md").read_text().splitlines() if "exit-codes.md" in line)
    told = {int(code) for code in re.findall(r"(\d+) [a-z+]", row.rpartition("tell causes apart:")[2])}
    assert len(told) > 4
    assert told - set(ExitCode) == {128}


def pieces(node):
    """The fixed parts of a text of the code."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def test_what_the_health_endpoint_is_quoted_with_is_said():
    quoted = re.findall(r"^\| (?:\d+ )?`([^`]+)` \|", section("health.md", "When it does not work"), re.M)
    folders = (ROOT / "plugins" / "elastic-http-health" / "elastic_http_health", ROOT / "elastic_core" / "compose")
    files = [file for folder in folders for file in folder.rglob("*.py")]
    said = "\0".join("".join(pieces(node)) for file in files for node in ast.walk(ast.parse(file.read_text())))
    assert len(quoted) > 5
    assert [part for words in quoted for part in words.split("...") if part.strip() not in said] == []


@pytest.mark.parametrize("page", ["several-nodes.md", "logs.md", "debugging-a-hang.md"])
def test_lines_of_the_log_that_are_shown_are_of_known_events(page):
    text = (DOCS / page).read_text()
    shown = re.findall(r"^\S+Z (?:info|warning|error) +([a-z ]+): ", text, re.M)
    shown += re.findall(r'{"event": "([^"]+)"', text)
    assert shown
    assert set(shown) - set(EVENTS) == set()
