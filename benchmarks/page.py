"""Put measured figures into a page of the docs: tables between markers, and a plot; and from there into the README.

    python -m benchmarks.page [results.json ...]

Tables and the plot go between `<!-- measured: begin -->` and `<!-- measured: end -->` of `--page`, each in the place of
the one before it; tables of what is not in the files stay, with the day on which they were measured. The plot is drawn
into `--plot`, if `rendezvous` is among what was measured. Of files that measured the same, the last one counts.
`--print` only shows the tables. Files of `benchmarks.gpu` make the page's section on GPU machines.

The page owns the figures. The table in `--readme`, between the same markers, is made of some rows of the page (see
`README`), and that in `--survival` is the one of `losses`, each time this runs; without files that is all it does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import number, sides

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TITLES = {
    "rendezvous": "Rendezvous: all join at once",
    "steady": "Steady state: nothing happens",
    "recovery": "Recovery: something happens to a job of two nodes",
    "hello": "The launcher: two workers that print a line",
    "many_workers": "The launcher: 64 workers on one machine",
    "digits_kill": "The launcher: a training job whose worker is killed",
    "warm": "Warm start: a worker is killed, and other first steps",
    "etcd": "Over etcd (stock torchrun's own etcd backends cannot use an etcd of today)",
    "etcd_recovery": "Recovery over etcd",
    "losses": "Losses: a job of three machines",
    "endurance": "1,000 rounds with killed agents",
    "paper": "10,000 nodes on paper",
    "timer": "Watchdog timers: what they cost a worker",
    "before_rendezvous": "Beside the commit before: all join at once",
    "before_steady": "Beside the commit before: nothing happens",
    "before_recovery": "Beside the commit before: recovery",
    "before_etcd": "Beside the commit before: over etcd",
    "before_etcd_recovery": "Beside the commit before: recovery over etcd",
    "before_health": "Beside the commit before: the health endpoint under attack",
}


@dataclass(frozen=True)
class Shown:
    """A row of the README's table.

    Args:
        what: its first cell.
        benchmark, row: where the page has it: a name among `TITLES`, and the first cell there, without the unit.
        notes: show what is said of the figures instead of the figures.
        missing: what to say for torchrun where the page has a dash.
    """

    what: str
    benchmark: str
    row: str
    notes: bool = False
    missing: str = "-"


README = (
    Shown("two workers that print a line: wall time", "hello", "wall time"),
    Shown("peak memory of the agent", "hello", "peak memory of the agent"),
    Shown("64 workers: all started", "many_workers", "all workers started after"),
    Shown(
        "worker killed: survivor gone to new workers' start",
        "digits_kill",
        "digits: survivor gone to new workers' start",
    ),
    Shown("training job whose worker is killed: recovered", "digits_kill", "digits: recovered", notes=True),
    Shown("256 agents form a round", "rendezvous", "256 agents joined"),
    Shown("1,024 agents form a round", "rendezvous", "1024 agents joined", missing="never"),
    Shown("two nodes, worker killed: next optimizer step", "recovery", "worker killed: next step at world size 2"),
    Shown(
        "two nodes, one lost: next step of the other", "recovery", "agent and worker killed: next step at world size 1"
    ),
    Shown("third node joins: first step with three", "recovery", "third agent started: first step at world size 3"),
)


def cell(row: Mapping[str, Any], launcher: str) -> str:
    """The figure and what is to be said of it."""
    value, note = row["values"].get(launcher), row["notes"].get(launcher)
    if value is None:
        return note or "-"
    return f"{number(value)} ({note})" if note else number(value)


def line(row: Mapping[str, Any], names: Sequence[str], compared: bool) -> str:
    """One row of a table; with ratio and target, where there are any."""
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
    met = {None: "", True: "yes", False: "**no**"}[row["met"]]
    ends = [ratio, row["target"], met] if compared else []
    cells = [f"{row['what']} [{row['unit']}]", *(cell(row, name) for name in names), *ends]
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def table(report: Mapping[str, Any]) -> str:
    """One benchmark."""
    names = sides(row["values"] for row in report["rows"])
    compared = any(row["ratio"] is not None or row["target"] for row in report["rows"])
    ends = ["ratio", "target", "met"] if compared else []
    head = [f"| | {' | '.join([*names, *ends])} |", f"|{'---|' * (len(names) + len(ends) + 1)}"]
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in report["settings"].items())
    title = TITLES.get(report["benchmark"], report["benchmark"])
    return "\n".join(
        [
            f"### {title}",
            "",
            f"`{report['benchmark']}`: {settings}.",
            "",
            *head,
            *(line(row, names, compared) for row in report["rows"]),
        ]
    )


def facts(machine: Mapping[str, Any]) -> str:
    """On what it was measured."""
    known = ("elastic-core", "elastic-c10d", "elastic-etcd", "torch")
    versions = ", ".join(f"{name} {machine[name]}" for name in known if name in machine)
    kernel = ".".join(machine["kernel"].split(".")[:2])
    return (
        f"Measured on {machine['date'][:10]}: {machine['cores']} cores, {machine['memory_gib']} GiB, Linux "
        f"{kernel}, Python {machine['python']}, {versions}, load {machine['load_before']} at the start."
    )


def merged(contents: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Machine and report for each benchmark, in the order of `TITLES`; later files replace earlier ones."""
    found = {report["benchmark"]: (content["machine"], report) for content in contents for report in content["reports"]}
    order = [*TITLES, *(name for name in found if name not in TITLES)]
    return [found[name] for name in order if name in found]


def tables(contents: Sequence[Mapping[str, Any]]) -> str:
    """All benchmarks, each with the machine it was measured on."""
    return "\n\n".join(f"{table(report)}\n\n{facts(machine)}" for machine, report in merged(contents))


def with_tables(page: str, measured: str) -> str:
    """The page with new tables between its markers, and those that stood there of what was not measured anew.

    Raises:
        ValueError: the markers are not there, each once and in order.
    """
    before, there, after = apart(page)
    parts = {**sections(there), **sections(measured)}
    order = ["", *TITLES.values(), *(title for title in parts if title not in TITLES.values())]
    text = "\n\n".join(parts[title] for title in dict.fromkeys(order) if title in parts)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def apart(page: str) -> tuple[str, str, str]:
    """What stands before, between and after the markers.

    Raises:
        ValueError: they are not there, each once and in order.
    """
    before, begin, rest = page.partition(BEGIN)
    there, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"expected one '{BEGIN}' and after it one '{END}' in the page; put them where tables belong")
    return before, there, after


def with_figures(readme: str, page: str) -> str:
    """The README with the figures of the page.

    Raises:
        ValueError: the markers are not there, or the page lacks a row.
    """
    before, _, after = apart(readme)
    parts = sections(apart(page)[1])
    versions = {
        version for row in README for version in re.findall(r"\btorch (\d+\.\d+)", parts.get(TITLES[row.benchmark], ""))
    }
    head = [f"| | elastic | torchrun {' and '.join(sorted(versions))} | ratio |", "|---|---|---|---|"]
    return "\n".join([f"{before}{BEGIN}", *head, *(shown(row, parts) for row in README), f"{END}{after}"])


def with_losses(text: str, page: str) -> str:
    """What is said of losses, with the figures of the page.

    Raises:
        ValueError: the markers are not there, or the page has no such table.
    """
    before, _, after = apart(text)
    part = sections(apart(page)[1]).get(TITLES["losses"])
    if part is None:
        raise ValueError(f"expected a table {TITLES['losses']!r}")
    table = [line for line in part.splitlines() if line.startswith("|")]
    return "\n".join([f"{before}{BEGIN}", *table, f"{END}{after}"])


def shown(row: Shown, parts: Mapping[str, str]) -> str:
    """A row of the README's table. A figure has its unit, and a ratio two digits after the point, if torchrun has a
    figure, too.

    Raises:
        ValueError: the page lacks it.
    """
    title = TITLES[row.benchmark]
    found = re.findall(
        rf"^\| {re.escape(row.row)} \[(.+?)\] \| (.+?) \| (.+?) \|(?: +(\S*) *\|)?", parts.get(title, ""), re.M
    )
    if len(found) != 1:
        raise ValueError(f"expected one row {row.row!r} under {title!r}, found {len(found)}")
    unit, *values, ratio = found[0]
    told = [_told(value, unit, row.notes) for value in values]
    if row.notes or not _FIGURE.fullmatch(values[1]):
        ratio = ""
    cells = [row.what, told[0], row.missing if told[1] == "-" else told[1], f"{float(ratio):.2f}" if ratio else ""]
    return "| " + " | ".join(cells) + " |"


_FIGURE = re.compile(r"([\d.]+)(?: \((.+)\))?")


def _told(value: str, unit: str, notes: bool) -> str:
    found = _FIGURE.fullmatch(value)
    if not found:
        return value
    return found[2] if notes and found[2] else f"{found[1]} {unit}"


def sections(measured: str) -> dict[str, str]:
    """The tables by their titles, and under "" what comes before them, if anything does."""
    parts = (part.strip() for part in re.split(r"^(?=### )", measured, flags=re.MULTILINE))
    return {_title(part): part for part in parts if part}


def _title(part: str) -> str:
    first = part.partition("\n")[0]
    return first.removeprefix("### ") if first.startswith("### ") else ""


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("results", nargs="*", type=Path, metavar="FILE", help="written by --json")
    made.add_argument("--page", type=Path, default=DOCS / "benchmarks.md", help="(docs/benchmarks.md)")
    made.add_argument("--plot", type=Path, default=DOCS / "img" / "rendezvous.png", help="(docs/img/rendezvous.png)")
    made.add_argument("--readme", type=Path, default=ROOT / "README.md", help="(README.md)")
    made.add_argument("--survival", type=Path, default=DOCS / "what-survives.md", help="(docs/what-survives.md)")
    made.add_argument("--print", action="store_true", help="only show the tables")
    return made


def main() -> int:
    """Leaves with 1 and the reason when a page has no place for the tables, or lacks a row that the README shows."""
    from benchmarks.gpu import section as gpu  # which makes its tables with this module

    arguments = options().parse_args()
    read = [json.loads(path.read_text()) for path in arguments.results]
    suites = [content for content in read if content.get("suite") == "gpu"]
    contents = [content for content in read if content not in suites]
    measured = tables(contents)
    if arguments.print:
        print(measured)
        if suites:
            print(gpu.section(suites))
        return 0
    try:
        if plotted(contents, arguments.plot):
            measured = f"{image(arguments.page, arguments.plot)}\n\n{measured}"
        page = with_tables(arguments.page.read_text(), measured)
        page = gpu.with_section(page, suites) if suites else page
        readme = with_figures(arguments.readme.read_text(), page)
        survival = with_losses(arguments.survival.read_text(), page)
        arguments.page.write_text(page)
        arguments.survival.write_text(survival)
        arguments.readme.write_text(readme)
    except (OSError, ValueError) as error:
        print(f"error: {arguments.page}: {error}", file=sys.stderr)
        return 1
    return 0


def plotted(contents: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """Draw what there is to draw; whether there was anything."""
    found = [report for _, report in merged(contents) if report["benchmark"] == "rendezvous"]
    for report in found:
        from benchmarks.plot import draw  # Needs matplotlib, which nothing else here does.

        draw(report["measurements"], path)
    return bool(found)


def image(page: Path, plot: Path) -> str:
    """The plot, as the page shows it."""
    return f"![Time against the number of agents, both axes logarithmic]({os.path.relpath(plot, page.parent)})"


if __name__ == "__main__":
    sys.exit(main())
