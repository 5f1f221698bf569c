"""The doctor's pages match its exit codes, including their precedence, and its findings."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from blocks import block_of
from elastic_doctor.finding import Check, as_text, exit_code_of, fault, note, ok, warning

from elastic_core.config import NodeRange, Settings
from elastic_core.errors import ExitCode

DOCS = Path(__file__).parents[3] / "docs"
GUIDE, REFERENCE = ((DOCS / name).read_text() for name in ("guides/doctor.md", "reference/doctor.md"))
ROW = re.compile(r"(\w+) +([a-z-]+)  +(\S.*)\n(?: +-> (.*)\n)?")


def code_of(*checks):
    return int(exit_code_of([fault(check, "", "") for check in checks]))


def table(text, head):
    """Return the first and second cell of each row in the table with this header."""
    _, _, below = text.partition(f"\n| {head} |")
    return re.findall(r"^\| (.+?) \| (.+?) \|", below.partition("\n\n")[0], re.M)


def test_doctor_page_lists_exactly_the_doctors_exit_codes():
    told = {int(code) for code, _ in table(GUIDE, "exit code | meaning") if code.isdigit()}
    assert told == {code_of(), *map(code_of, Check)}


def test_exit_code_table_marks_the_doctors_codes():
    mine = {int(code) for code in ExitCode if "doctor:" in code.meaning}
    assert mine == set(map(code_of, Check))


def test_precedence_of_exit_codes_is_documented():
    (first, then, last) = map(int, re.search(r"(\d) takes precedence over \d, and (\d) over (\d)", GUIDE).groups())
    order = [first, then, last]
    for one, other in combinations(Check, 2):
        assert code_of(one, other) == min(code_of(one), code_of(other), key=order.index)


@pytest.mark.parametrize("check", Check)
def test_exit_code_of_each_check_is_documented(check):
    (row,) = re.findall(rf"^\| `{check.value}` \| .* \| (\d+) \|$", REFERENCE, re.M)
    assert int(row) == code_of(check)


@pytest.mark.parametrize("words", ["nothing listens at", "doctors joined, and all can connect to each other"])
def test_documented_findings_match_the_doctor(words):
    block = block_of("docs/guides/doctor.md", words)
    made = {"ok": lambda check, told, _: ok(check, told), "note": note, "warning": warning, "fault": fault}
    findings = [made[level](Check(check), told, more) for level, check, told, more in ROW.findall(block)]
    settings = replace(Settings(), nnodes=NodeRange(2, 4), rdzv_backend="c10d", rdzv_endpoint="node0:29400")
    printed = as_text("node1", settings, findings)
    assert printed == block if block.startswith("node1: ") else block in printed
