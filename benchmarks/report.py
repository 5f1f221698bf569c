"""The results of a benchmark, as a table and as JSON, and the command line that all benchmarks share."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.job import LAUNCHERS, BenchmarkError
from benchmarks.processes import adopt_orphans, end_descendants

OURS = ("elastic", "warm")
"""Names of the measured side; all other names are references."""


@dataclass(frozen=True)
class Tries:
    """The tries behind a figure.

    Args:
        made: number of all tries.
        counted: number of tries with a figure. Median and worst cover only these.
        worst: the worst figure.
    """

    made: int
    counted: int
    worst: float | None = None

    def __str__(self) -> str:
        tries = "1 try" if self.made == 1 else f"{self.made} tries"
        if not self.counted:
            return f"0 of {tries}"
        if self.counted < self.made:
            return f"median of {self.counted} of {tries}, worst {number(self.worst)}"
        return f"worst {number(self.worst)}, {tries}"


@dataclass
class Row:
    """One measured quantity, for each chosen launcher.

    Args:
        target: the target in words.
        against: the divisor of the ratio, if it is not torchrun's figure in `values`.
        met: whether the target is met; None without a figure or a target.
        notes: for each launcher, outcomes of tries without a figure, such as "3 hung (60 s)".
        tries: for each launcher, the number of tries and the worst.
    """

    what: str
    unit: str
    values: Mapping[str, float | None]
    target: str = ""
    against: float | None = None
    met: bool | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    tries: Mapping[str, Tries] = field(default_factory=dict)

    @classmethod
    def measured(
        cls,
        what: str,
        unit: str,
        figures: Mapping[str, Sequence[float]],
        target: str = "",
        *,
        made: Mapping[str, int] | None = None,
        worst: Callable[[Sequence[float]], float] = max,
        against: float | None = None,
        met: bool | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> Row:
        """Make a row with the medians of these figures, their worst and the number of tries.

        Args:
            made: for each launcher, the number of tries, if some may have no figure.
            worst: picks the worst figure (the largest).
        """
        tries = {
            name: Tries((made or {}).get(name, len(of_one)), len(of_one), worst(of_one) if of_one else None)
            for name, of_one in figures.items()
        }
        shown = {name: note for name, note in (notes or {}).items() if note}
        return cls(what, unit, medians(figures), target, against, met, shown, tries)

    def ratio(self) -> float | None:
        """elastic / torchrun, if both have a figure and neither is 0."""
        ours = own(self.values)
        other = self.values.get("torchrun") if self.against is None else self.against
        return ours / other if ours and other else None


@dataclass
class Report:
    """The outcome of one benchmark: rows for people, and every single measurement for `--json`."""

    benchmark: str
    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    measurements: dict[str, Any] = field(default_factory=dict)

    def print(self) -> None:
        """Print a table with one line for each row."""
        print(f"\n{self.benchmark}: " + ", ".join(f"{name} {value}" for name, value in self.settings.items()))
        names = sides(row.values for row in self.rows)
        print(f"{'':58}{''.join(f'{name:>10}' for name in names)}{'ratio':>8}  target")
        for row in self.rows:
            cells = "".join(f"{number(row.values.get(name)):>10}" for name in names)
            ratio = row.ratio()
            print(
                f"{f'{row.what} [{row.unit}]':58}{cells}"
                f"{'-' if ratio is None else f'{ratio:.2f}':>8}  {row.target}{verdict(row.met)}"
            )
            for name in names:
                if note := described(row.tries.get(name), row.notes.get(name)):
                    print(f"    {name}: {note}")

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON, with ratios."""
        rows = [{**asdict(row), "ratio": row.ratio()} for row in self.rows]
        return {
            "benchmark": self.benchmark,
            "settings": self.settings,
            "rows": rows,
            "measurements": self.measurements,
        }


def described(tries: Tries | None, note: str | None) -> str:
    """The text after the figure of a cell."""
    return "; ".join(str(part) for part in (tries, note) if part)


def sides(values: Iterable[Mapping[str, float | None]]) -> tuple[str, ...]:
    """The names of the sides in these rows; elastic and torchrun by default."""
    names = {name: None for of_one in values for name in of_one}
    ours = [name for name in (*OURS, "c10d") if name in names][:1] or [OURS[0]]
    others = [name for name in names if name not in (*ours, *LAUNCHERS)]
    return *ours, *others, *(["torchrun"] if "torchrun" in names or not others else [])


def own(values: Mapping[str, float | None]) -> float | None:
    """The figure of the measured side."""
    return next((value for name in OURS if (value := values.get(name)) is not None), None)


def number(value: float | None) -> str:
    """The number with three significant digits, or a dash for None."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def verdict(met: bool | None) -> str:
    """The verdict to print after a target."""
    return {None: "", True: ": met", False: ": NOT MET"}[met]


def median(values: Sequence[float]) -> float | None:
    """The median, or None without values."""
    return statistics.median(values) if values else None


def medians(values: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """The median for each launcher."""
    return {name: median(of_one) for name, of_one in values.items()}


def machine_facts() -> dict[str, Any]:
    """Facts about the machine and its software that a reader needs to compare figures."""
    versions = {}
    for name in ("elastic-core", "elastic-c10d", "elastic-etcd", "torch"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        **versions,
    }


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks share."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--launchers", default="elastic,torchrun", help="which to measure, comma-separated (elastic,torchrun)"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write results, settings and machine facts to FILE")
    return made


def main(measure: Callable[[argparse.Namespace], Report], options: argparse.ArgumentParser) -> int:
    """Measure, print and write. Returns 1 and prints the reason if there is no figure to report."""
    arguments = options.parse_args()
    facts = machine_facts()
    try:
        publish([conduct(measure, arguments)], facts, arguments.json)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def conduct(measure: Callable[[argparse.Namespace], Report], arguments: argparse.Namespace) -> Report:
    """Run one benchmark and print its table. Kills leftover processes, also on Ctrl-C and SIGTERM."""
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        report = measure(arguments)
    finally:
        end_descendants()
    report.print()
    return report


def publish(reports: Sequence[Report], facts: dict[str, Any], path: Path | None) -> None:
    """Write `--json`, with the facts of this machine."""
    if path is not None:
        content = {"machine": facts, "reports": [report.as_dict() for report in reports]}
        path.write_text(json.dumps(content, indent=2) + "\n")
