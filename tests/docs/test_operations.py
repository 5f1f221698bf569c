"""What the page on operations quotes and reckons is what the code says."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from elastic_core.config import SPECS
from elastic_core.log import EVENTS
from elastic_core.plugin import BACKEND_OPTIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
TUNING, TROUBLE = PAGE.split("\n## When something goes wrong\n")
DEFAULTS = {option.name: option.default for option in BACKEND_OPTIONS}
ROWS = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in re.findall(r"^\| .*", TROUBLE, re.M)[1:]]
QUOTED = [words for row in ROWS for words in re.findall(r"`([^`]+)`", row[1])]


@cache
def said():
    """Every text of the code, with `...` where it is filled in."""
    files = [*(ROOT / "elastic_core").rglob("*.py"), *(ROOT / "plugins/elastic-c10d/elastic_c10d").rglob("*.py")]
    return [text for file in files for node in ast.walk(ast.parse(file.read_text())) if (text := text_of(node))]


def text_of(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.mark.parametrize("words", sorted(set(QUOTED)))
def test_what_is_quoted_is_said(words):
    pattern = re.compile(".*".join(re.escape(part) for part in words.split("...")), re.S)
    assert words in EVENTS or any(pattern.search(text) for text in said())


def test_every_row_quotes_something_and_says_what_to_do():
    assert len(ROWS) > 20
    assert [row for row in ROWS if len(row) != 3 or "`" not in row[1] or not row[2]] == []


COURSE = {"worker failed", "restart decided", "round over", "signal received"}
"""What belongs to the course of a job that goes wrong. Its report and its exit code are in the table."""

TOLD_BY_WATCHDOGS = {"timer ignored", "timer request refused", "timer pipe made again"}
"""On the page about timers."""


def warned_of(code):
    """The events that it logs as warnings or worse. Where one is handed on, any event that the file names may be it."""
    tree = ast.parse(code)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and is_warning(node.func)]
    named = [call.args[0] for call in calls if call.args]
    if all(isinstance(event, ast.Constant) for event in named):
        return {event.value for event in named}
    return {text for node in ast.walk(tree) if (text := text_of(node)) in EVENTS}


def is_warning(function):
    return isinstance(function, ast.Attribute) and function.attr in ("warning", "error", "critical")


def all_warned_of():
    files = [*(ROOT / "elastic_core").rglob("*.py"), *ROOT.glob("plugins/*/elastic_*/**/*.py")]
    return set().union(*(warned_of(file.read_text()) for file in files)) & set(EVENTS)


def test_every_warning_of_the_log_is_in_the_table_or_has_a_reason_not_to_be():
    assert sorted(all_warned_of() - set(re.findall(r"`([^`]+)`", PAGE)) - COURSE - TOLD_BY_WATCHDOGS) == []


def test_what_is_left_out_of_the_table_is_warned_of_and_told_elsewhere():
    assert all_warned_of() >= COURSE | TOLD_BY_WATCHDOGS
    page = (ROOT / "docs" / "watchdogs.md").read_text()
    assert [event for event in TOLD_BY_WATCHDOGS if f"`{event}`" not in page] == []


def told_defaults():
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) s[;| ]", TUNING, re.M)
    return {name.lstrip("-").replace("-", "_"): float(value) for name, value in rows}


def test_defaults_are_those_of_the_code():
    told = told_defaults()
    theirs = {**DEFAULTS, **{name: spec.default for name, spec in SPECS.items()}}
    assert len(told) == 7
    assert told == {name: theirs[name] for name in told}


def test_only_where_a_node_hosts_the_store_it_may_come_last():
    plugin = pytest.importorskip("elastic_c10d.plugin")
    options = [option for record in plugin.elastic_rendezvous_backends() for option in record.options or ()]
    assert {option.default for option in options if option.name == "connect_timeout"} == {None}
    assert "with `c10d` and `static` as `join_timeout`" in TUNING


def test_the_windows_are_reckoned_right():
    for values, lost, pause in re.findall(r"^\| (default|`[^`]+`) \| ([\d.]+) s \| up to ([\d.]+) s", TUNING, re.M):
        given = dict(re.findall(r"(\w+)=([\d.]+)", values))
        interval = float(given.get("keep_alive_interval", DEFAULTS["keep_alive_interval"]))
        attempts = float(given.get("keep_alive_max_attempt", DEFAULTS["keep_alive_max_attempt"]))
        assert (float(lost), float(pause)) == (interval * attempts, interval * (attempts - 1))


def test_members_have_the_time_to_stop_their_workers():
    assert DEFAULTS["close_timeout"] > SPECS["shutdown_timeout"].default + SPECS["kill_timeout"].default
