"""The exit codes on the pages equal those in the code, including the precedence of the doctor's codes."""

from __future__ import annotations

import re
import signal
from itertools import combinations
from pathlib import Path

import pytest
from elastic_doctor.finding import Check, exit_code_of, fault

from elastic_core.errors import ExitCode

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCTOR, REFERENCE = ((DOCS / name).read_text() for name in ("guides/doctor.md", "reference/doctor.md"))
NAMED = re.compile(r"\b(?:exit code|exits with) (\d+)")
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("*/*/README.md")])


def code_of(*checks):
    return int(exit_code_of([fault(check, "", "") for check in checks]))


def table(text, head):
    """Return the first and second cell of each row in the table with this header."""
    _, _, below = text.partition(f"\n| {head} |")
    return re.findall(r"^\| (.+?) \| (.+?) \|", below.partition("\n\n")[0], re.M)


def test_doctor_page_lists_exactly_the_doctors_exit_codes():
    told = {int(code) for code, _ in table(DOCTOR, "exit code | meaning") if code.isdigit()}
    assert told == {code_of(), *map(code_of, Check)}


def test_exit_code_table_marks_the_doctors_codes():
    mine = {int(code) for code in ExitCode if "doctor:" in code.meaning}
    assert mine == set(map(code_of, Check))


def test_precedence_of_exit_codes_is_documented():
    (first, then, last) = map(int, re.search(r"(\d) takes precedence over \d, and (\d) over (\d)", DOCTOR).groups())
    order = [first, then, last]
    for one, other in combinations(Check, 2):
        assert code_of(one, other) == min(code_of(one), code_of(other), key=order.index)


@pytest.mark.parametrize("check", Check)
def test_exit_code_of_each_check_is_documented(check):
    (row,) = re.findall(rf"^\| `{check.value}` \| .* \| (\d+) \|$", REFERENCE, re.M)
    assert int(row) == code_of(check)


def test_pages_name_only_existing_exit_codes():
    known = {*map(int, ExitCode), *(128 + number for number in signal.valid_signals())}
    named = [(page, int(code)) for page in PAGES for code in NAMED.findall(page.read_text())]
    assert [found for found in named if found[1] not in known] == []
