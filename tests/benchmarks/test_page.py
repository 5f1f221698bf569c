"""Tables of measured figures in the docs, and the README's table, which is made from them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.report import Report, Row

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
FIGURES = (ROOT / "docs" / "project" / "benchmarks.md").read_text()
README = (ROOT / "README.md").read_text()
MACHINE = {"date": "2027-01-02T", "cores": 2, "memory_gib": 4, "kernel": "7.1.2", "python": "3.14", "load_before": 0.1}
TORCH = {**MACHINE, "torch": "3.0"}


def content(name, *rows, machine=TORCH, settings=(), measurements=()):
    """The content of a file that `--json` writes."""
    report = Report(name, dict(settings), list(rows), dict(measurements)).as_dict()
    return json.loads(json.dumps({"machine": machine, "reports": [report]}))


def seconds(what="wall time", elastic=(1.0,) * 9 + (3.0,), torchrun=(2.0,) * 9 + (4.0,), **more):
    return Row.measured(what, "s", {"elastic": elastic, "torchrun": torchrun}, **more)


def test_readme_has_the_figures_of_the_page():
    assert page.with_figures(README, FIGURES) == README, "run: python -m benchmarks.page"


def test_parts_of_a_benchmark_make_one_table():
    part = "- of that, until its workers were started"
    first = content("recovery", seconds("a"), seconds(part), seconds("b"), seconds(part), settings={"limit": 60})
    second = content(
        "recovery", seconds("b", (5.0,)), seconds(part, (6.0,)), seconds("c"), machine={**TORCH, "load_before": 2}
    )
    ((machines, report),) = page.merged([first, second])
    assert [row["what"] for row in report["rows"]] == ["a", part, "b", part, "c"]
    assert [row["values"]["elastic"] for row in report["rows"]] == [1.0, 1.0, 5.0, 6.0, 1.0]
    assert "load 0.1 to 2 at the start" in page.facts(*machines)
    assert report["settings"] == {"limit": 60}


def test_measurements_of_parts_are_merged():
    pieces = [
        content("rendezvous", seconds(), measurements={"seconds": {name: {"8": [1.0]}}})
        for name in ("elastic", "torchrun")
    ]
    ((_, report),) = page.merged(pieces)
    assert report["measurements"] == {"seconds": {"elastic": {"8": [1.0]}, "torchrun": {"8": [1.0]}}}


def test_new_figures_reach_page_and_readme(tmp_path, monkeypatch, capsys):
    paths = {name: tmp_path / f"{name}.md" for name in ("page", "readme", "survival")}
    paths["page"].write_text(FIGURES)
    paths["readme"].write_text(README)
    paths["survival"].write_text(f"{page.BEGIN}\n{page.END}")
    (tmp_path / "new.json").write_text(json.dumps(content("hello", seconds())))
    options = [f"--{name}={path}" for name, path in paths.items()]
    monkeypatch.setattr(sys, "argv", ["page", str(tmp_path / "new.json"), *options])
    assert page.main() == 0
    assert "| wall time [s] | 1 (worst 3, 10 tries) |" in paths["page"].read_text()
    assert "| two workers that print one line each: wall time | 1 s (worst 3) |" in paths["readme"].read_text()
    assert "the agent's peak memory\n" in capsys.readouterr().err  # the new table lacks it
    assert "| machine off: next step at world size 2 [s] |" in paths["survival"].read_text()
