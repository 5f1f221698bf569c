"""The figures of the README are those of the page, which the tool writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import page

ROOT = Path(__file__).parents[2]
FIGURES = (ROOT / "docs" / "benchmarks.md").read_text()
README = (ROOT / "README.md").read_text()


def test_the_readme_has_the_figures_of_the_page():
    assert page.with_figures(README, FIGURES) == README, "run: python -m benchmarks.page"


def report(name, rows):
    """As `--json` writes it."""
    made = [
        {"what": what, "unit": unit, "values": values, "notes": notes, "ratio": ratio, "target": "", "met": None}
        for what, unit, values, notes, ratio in rows
    ]
    return {"benchmark": name, "settings": {"runs": 1}, "rows": made, "measurements": {}}


MACHINE = {"date": "2027-01-02T", "cores": 2, "memory_gib": 4, "kernel": "7.1.2", "python": "3.14", "load_before": 0.1}
NEW = [
    report("hello", [("wall time", "s", {"elastic": 0.1234, "torchrun": 2.0}, {}, 0.0617)]),
    report("rendezvous", [("1024 agents joined", "s", {"elastic": 5.0}, {}, 0.5)]),
    report("digits_kill", [("digits: recovered", "% of runs", {"elastic": 98.0}, {"elastic": "49 of 50"}, None)]),
]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (page.Shown("start", "hello", "wall time"), "| start | 0.123 s | 2 s | 0.06 |"),
        (page.Shown("form", "rendezvous", "1024 agents joined", missing="never"), "| form | 5 s | never |  |"),
        (page.Shown("back", "digits_kill", "digits: recovered", notes=True), "| back | 49 of 50 | - |  |"),
    ],
)
def test_a_row_is_what_the_tool_has_written(row, expected):
    measured = page.tables([{"machine": MACHINE, "reports": NEW}])
    assert page.shown(row, page.sections(measured)) == expected


def test_a_row_that_the_page_lacks_is_named():
    with pytest.raises(ValueError, match="expected one row 'no such' under 'The launcher: two workers"):
        page.shown(page.Shown("it", "hello", "no such"), page.sections(FIGURES))


def test_what_is_measured_anew_comes_into_both(tmp_path, monkeypatch):
    paths = {name: tmp_path / f"{name}.md" for name in ("page", "readme", "survival")}
    paths["page"].write_text(FIGURES)
    paths["readme"].write_text(README)
    paths["survival"].write_text(f"{page.BEGIN}\n{page.END}")
    (tmp_path / "new.json").write_text(json.dumps({"machine": {**MACHINE, "torch": "3.0"}, "reports": NEW[:1]}))
    options = [f"--{name}={path}" for name, path in paths.items()]
    rows = "| wall time [s] | 0.123 | 2 |", "| two workers that print a line: wall time | 0.123 s | 2 s | 0.06 |"
    monkeypatch.setattr(sys, "argv", ["page", str(tmp_path / "new.json"), *options])
    assert page.main() == 1  # the rows beside it, which the README shows, were not measured
    assert paths["page"].read_text() == FIGURES
    (tmp_path / "new.json").write_text(json.dumps({"machine": {**MACHINE, "torch": "3.0"}, "reports": whole()}))
    assert page.main() == 0
    assert [row in path.read_text() for row, path in zip(rows, paths.values(), strict=False)] == [True, True]
    assert "torchrun 2.13 and 3.0" in paths["readme"].read_text()
    assert "| machine off: next step at world size 2 [s] |" in paths["survival"].read_text()


def whole():
    peak = ("peak memory of the agent", "MiB", {"elastic": 1.0, "torchrun": 2.0}, {}, 0.5)
    (row,) = NEW[0]["rows"]
    return [report("hello", [(*(row[name] for name in ("what", "unit", "values", "notes", "ratio")),), peak])]
