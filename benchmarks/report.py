"""What a benchmark reports, to people and as JSON, and the command line that all of them have."""

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
"""The names of what is measured; all others are what it is compared with."""


@dataclass(frozen=True)
class Tries:
    """The tries that a figure comes from.

    Args:
        made: all of them.
        counted: those that have a figure. Median and worst are of these alone.
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
    """One measured quantity, for each launcher that was asked for.

    Args:
        target: what it should be, in words.
        against: what to divide by for the ratio, where it is not torchrun's figure in `values`.
        met: whether it is what it should be; None where nothing was measured, or nothing is asked.
        notes: for each launcher, what became of tries without a figure, such as "3 hung (60 s)".
        tries: for each launcher, how many tries there were, and the worst.
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
        """The medians of these figures, with the worst and the number of tries.

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
        """elastic / torchrun, where both are there and neither is nothing at all."""
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
        """A table with one line for each row."""
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
                if told := described(row.tries.get(name), row.notes.get(name)):
                    print(f"    {name}: {told}")

    def as_dict(self) -> dict[str, Any]:
        """For JSON, ratios included."""
        rows = [{**asdict(row), "ratio": row.ratio()} for row in self.rows]
        return {
            "benchmark": self.benchmark,
            "settings": self.settings,
            "rows": rows,
            "measurements": self.measurements,
        }


def described(tries: Tries | None, note: str | None) -> str:
    """The text of a cell next to its figure."""
    return "; ".join(str(part) for part in (tries, note) if part)


def sides(values: Iterable[Mapping[str, float | None]]) -> tuple[str, ...]:
    """What is compared in these rows: elastic with torchrun, unless they say with what else."""
    names = {name: None for of_one in values for name in of_one}
    ours = [name for name in (*OURS, "c10d") if name in names][:1] or [OURS[0]]
    others = [name for name in names if name not in (*ours, *LAUNCHERS)]
    return *ours, *others, *(["torchrun"] if "torchrun" in names or not others else [])


def own(values: Mapping[str, float | None]) -> float | None:
    """Our figure."""
    return next((value for name in OURS if (value := values.get(name)) is not None), None)


def number(value: float | None) -> str:
    """Three digits that matter, or a dash for what was not measured."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def verdict(met: bool | None) -> str:
    """To follow a target."""
    return {None: "", True: ": met", False: ": NOT MET"}[met]


def median(values: Sequence[float]) -> float | None:
    """The median, or None of nothing."""
    return statistics.median(values) if values else None


def medians(values: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """The median for each launcher."""
    return {name: median(of_one) for name, of_one in values.items()}


def machine_facts() -> dict[str, Any]:
    """What a reader needs to know before comparing these figures with others."""
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
    """The options that all benchmarks have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--launchers", default="elastic,torchrun", help="which to measure, comma-separated (elastic,torchrun)"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write results, settings and machine facts there")
    return made


def main(measure: Callable[[argparse.Namespace], Report], options: argparse.ArgumentParser) -> int:
    """Measure, print, write; leave with 1 and the reason when there is no figure to report."""
    arguments = options.parse_args()
    facts = machine_facts()
    try:
        publish([conduct(measure, arguments)], facts, arguments.json)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def conduct(measure: Callable[[argparse.Namespace], Report], arguments: argparse.Namespace) -> Report:
    """Run one benchmark, print its table, and end whatever it may have left, also on Ctrl-C and SIGTERM."""
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
