"""Has a change made anything slower? Run a benchmark of this checkout and of another one in turn.

    git worktree add ../before COMMIT
    python -m venv ../venv && ../venv/bin/python -m pip install ...   # the other checkout and the benchmark's needs
    python -m benchmarks.before ../before ../venv/bin/python rendezvous --nodes 8,256 --runs 1

Options after the benchmark's name are passed to that benchmark. Each checkout runs its own copy of the benchmark, in
its own environment, with the launcher `elastic` only. The checkouts take turns and alternate in going first, so that
drift in the machine's speed affects both. Figures are medians of all turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.job import ENVIRONMENT, BenchmarkError
from benchmarks.report import Report, Row, conduct, machine_facts, median, own, publish

NOW, BEFORE = "elastic", "before"
LIMIT = 1.1

Figures = dict[tuple[str, str, str], list[float]]
"""All figures of one side, by row label, unit, and label of the parent row (empty if there is none)."""


def measure(arguments: argparse.Namespace) -> Report:
    """Run both sides in turn. Raises BenchmarkError if a side yields no figures."""
    sides = {NOW: (Path(__file__).parents[1], sys.executable), BEFORE: (arguments.checkout, arguments.python)}
    found: dict[str, Figures] = {name: {} for name in sides}
    for turn in range(arguments.turns):
        for name in (NOW, BEFORE) if turn % 2 else (BEFORE, NOW):
            whole = ""
            for row in rows_of(*sides[name], arguments.benchmark, arguments.options):
                is_part = row["what"].startswith("- ")
                whole = whole if is_part else row["what"]
                if (value := own(row["values"])) is not None:
                    found[name].setdefault((row["what"], row["unit"], whole if is_part else ""), []).append(value)
    report = Report(f"before_{arguments.benchmark}", {"turns": arguments.turns, "options": " ".join(arguments.options)})
    report.rows = compared(found[NOW], found[BEFORE])
    report.measurements = {
        name: {f"{whole} {what}".strip(): values for (what, _, whole), values in found[name].items()} for name in sides
    }
    return report


def rows_of(checkout: Path, python: str, benchmark: str, options: list[str]) -> list[dict[str, Any]]:
    """Run one side once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "figures.json")
        command = [python, "-m", f"benchmarks.{benchmark}", "--launchers", "elastic", "--json", str(path), *options]
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, cwd=checkout, env={**ENVIRONMENT, **environ}, stdout=subprocess.DEVNULL)
        if done.returncode or not path.exists():
            raise BenchmarkError(f"{benchmark} in {checkout} failed with exit code {done.returncode}")
        rows: list[dict[str, Any]] = json.loads(path.read_text())["reports"][0]["rows"]
        return rows


def compared(now: Figures, before: Figures) -> list[Row]:
    """Return the rows that both sides have measured."""
    rows = []
    for key, values in now.items():
        if key in before:
            what, unit, _ = key
            new, old = median(values), median(before[key])
            met = None if not new or not old else new <= LIMIT * old
            rows.append(Row(what, unit, {NOW: new, BEFORE: old}, f"ratio <= {LIMIT}", against=old, met=met))
    return rows


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--turns", type=int, default=5, help="runs of each side (5)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write results, settings and machine facts to FILE")
    made.add_argument("checkout", type=Path, help="the other checkout")
    made.add_argument("python", help="Python of the environment in which that checkout is installed")
    made.add_argument("benchmark", help="name of the benchmark")
    made.add_argument("options", nargs=argparse.REMAINDER, help="its options")
    return made


def main() -> int:
    """Returns 1 and prints the reason if there is no figure to report."""
    arguments, facts = options().parse_args(), machine_facts()
    try:
        publish([conduct(measure, arguments)], facts, arguments.json)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
