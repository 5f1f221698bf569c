"""Put measured figures into a page of the docs, as tables and a plot, and from there into the README.

    python -m benchmarks.page [results.json ...]

New tables and the plot replace their predecessors between `<!-- measured: begin -->` and `<!-- measured: end -->` of
`--page`. Tables without new results keep their figures and date. If the results include `rendezvous`, the plot is
written to `--plot`. If a benchmark was measured in several parts, name all its files in one call. If several files have
the same row, the last one is used. `--print` only shows the tables. Files of `benchmarks.gpu` fill the page's section
on GPU machines.

Each run also copies figures from the page into the tables of `--readme` (the rows in `README`) and `--survival` (the
figures of `losses`). Without files, the program only copies these figures. Rows of the README that the page lacks are
left out and listed on standard error.
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

from benchmarks.recovery import SCENARIOS, SETTINGS
from benchmarks.report import Tries, described, number, sides

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TITLES = {
    "rendezvous": "Rendezvous: all agents join together",
    "steady": "Steady state: idle agents",
    "recovery": "Recovery after a loss or a gain",
    "hello": "The launcher: two workers that print a line",
    "many_workers": "The launcher: 64 workers on one machine",
    "digits_kill": "The launcher: a training job whose worker is killed",
    "warm": "Warm start: time to the next or first step",
    "etcd": "Over etcd (torchrun's etcd backends do not support current etcd versions)",
    "etcd_recovery": "Recovery over etcd",
    "losses": "Losses: a job of three machines",
    "losses_torchrun": "Losses: a job of three machines, against torchrun",
    "endurance": "1,000 rounds with killed agents",
    "paper": "Computed cost of 10,000 nodes",
    "timer": "Watchdog timers: what they cost a worker",
    "hangs": "Hangs: a worker that makes no progress",
}


@dataclass(frozen=True)
class Shown:
    """A row of the README's table.

    Args:
        what: the first cell.
        benchmark, row: its place on the page: a key of `TITLES`, and the first cell there, without the unit.
        notes: show the note of a figure instead of the figure.
    """

    what: str
    benchmark: str
    row: str
    notes: bool = False


def _recovery(label: str, *names: str) -> tuple[Shown, ...]:
    titles = [f"{label}: {SCENARIOS[name].title}" for name in names]
    return tuple(Shown(title, "recovery", title) for title in titles)


README = (
    Shown("two workers that print one line each: wall time", "hello", "wall time"),
    Shown("the agent's peak memory", "hello", "peak memory of the agent"),
    Shown("64 workers: time until all have started", "many_workers", "all workers started after"),
    Shown("256 agents: time to form a round", "rendezvous", "256 agents joined"),
    Shown("training job whose worker is killed: recovered", "digits_kill", "digits: recovered", notes=True),
    Shown("- kill to next epoch line, the user's wait", "digits_kill", "digits: kill to next epoch line"),
    Shown(
        "- of that, survivor's exit to new workers' start",
        "digits_kill",
        "digits: survivor's exit to new workers' start",
    ),
    *_recovery("fixed size", "fixed"),
    *_recovery("like for like", "worker", "node", "sigterm", "third", "agent"),
    *_recovery(SETTINGS["own_store"].label, "worker", "third"),
    *_recovery("defaults", "worker", "node"),
)
"""A row is left out if the page lacks it or gives no number of tries."""

ENOUGH = 10
"""With fewer tries, a cell of the README's table gives their number."""


def cell(row: Mapping[str, Any], launcher: str) -> str:
    """A cell with the figure and its notes."""
    value, tries = row["values"].get(launcher), row.get("tries", {}).get(launcher)
    notes = described(Tries(**tries) if tries else None, row["notes"].get(launcher))
    if value is None:
        return notes or "-"
    return f"{number(value)} ({notes})" if notes else number(value)


def line(row: Mapping[str, Any], names: Sequence[str], compared: bool) -> str:
    """A row of a table, with ratio and target if the table has any."""
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
    met = {None: "", True: "yes", False: "**no**"}[row["met"]]
    ends = [ratio, row["target"], met] if compared else []
    cells = [f"{row['what']} [{row['unit']}]", *(cell(row, name) for name in names), *ends]
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def table(report: Mapping[str, Any]) -> str:
    """The title, settings and table of a benchmark."""
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


def facts(*machines: Mapping[str, Any]) -> str:
    """Describe the machines of a measurement, whose facts differ only in date and load."""
    known = ("elastic-core", "torch")  # the plugins have the core's version
    machine = machines[-1]
    versions = ", ".join(f"{name} {machine[name]}" for name in known if name in machine)
    kernel = ".".join(machine["kernel"].split(".")[:2])
    dates = " and ".join(sorted({one["date"][:10] for one in machines}))
    loads = [one["load_before"] for one in machines]
    load = " to ".join(str(one) for one in dict.fromkeys((min(loads), max(loads))))
    return (
        f"Measured on {dates}: {machine['cores']} cores, {machine['memory_gib']} GiB, Linux "
        f"{kernel}, Python {machine['python']}, {versions}, load {load} at the start."
    )


Measured = tuple[list[Mapping[str, Any]], Mapping[str, Any]]
"""The machines that a report was measured on, one for each file, and the report."""


def merged(contents: Sequence[Mapping[str, Any]]) -> list[Measured]:
    """Machines and report for each benchmark, in the order of `TITLES`. Reports of the same benchmark are merged; if
    several files have the same row, the last one is used."""
    found: dict[str, Measured] = {}
    for content in contents:
        for report in content["reports"]:
            machines, before = found.get(report["benchmark"], ([], None))
            whole = report if before is None else joined(before, report)
            found[report["benchmark"]] = ([*machines, content["machine"]], whole)
    order = [*TITLES, *(name for name in found if name not in TITLES)]
    return [found[name] for name in order if name in found]


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two reports of one benchmark."""
    return {
        **second,
        "settings": {**first["settings"], **second["settings"]},
        "rows": list({**_named(first["rows"]), **_named(second["rows"])}.values()),
        "measurements": _deep(first["measurements"], second["measurements"]),
    }


def _named(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Rows by the label of their parent row and their own label."""
    named, whole = {}, ""
    for row in rows:
        whole = whole if row["what"].startswith("- ") else row["what"]
        named[whole, row["what"]] = row
    return named


def _deep(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    made = {**first, **second}
    for name in first.keys() & second.keys():
        if isinstance(first[name], dict) and isinstance(second[name], dict):
            made[name] = _deep(first[name], second[name])
    return made


def tables(contents: Sequence[Mapping[str, Any]]) -> str:
    """The tables of all benchmarks, each with its machines."""
    return "\n\n".join(f"{table(report)}\n\n{facts(*machines)}" for machines, report in merged(contents))


def with_tables(page: str, measured: str) -> str:
    """The page with new tables between its markers. Keeps old tables that have no successor.

    Raises:
        ValueError: the markers are missing, repeated or out of order.
    """
    before, there, after = apart(page)
    parts = {**sections(there), **sections(measured)}
    order = ["", *TITLES.values(), *(title for title in parts if title not in TITLES.values())]
    text = "\n\n".join(parts[title] for title in dict.fromkeys(order) if title in parts)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def apart(page: str) -> tuple[str, str, str]:
    """The text before, between and after the markers.

    Raises:
        ValueError: the markers are missing, repeated or out of order.
    """
    before, begin, rest = page.partition(BEGIN)
    there, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"the page needs one '{BEGIN}' and after it one '{END}', around the place for the tables")
    return before, there, after


def with_figures(readme: str, page: str) -> str:
    """The README with figures from the page.

    Raises:
        ValueError: the markers are missing, or the page has none of the rows.
    """
    before, _, after = apart(readme)
    parts = sections(apart(page)[1])
    rows = [(row, found) for row in README if (found := shown(row, parts))]
    if not rows:
        raise ValueError("the page lacks all rows of the README, or their numbers of tries; measure at least one")
    versions = {
        version for row, _ in rows for version in re.findall(r"\btorch (\d+\.\d+)", parts[TITLES[row.benchmark]])
    }
    head = [f"| | elastic | torchrun {' and '.join(sorted(versions))} | ratio |", "|---|---|---|---|"]
    return "\n".join([f"{before}{BEGIN}", *head, *(found for _, found in rows), f"{END}{after}"])


def left_out(page: str) -> list[str]:
    """The rows of the README's table that the page lacks, or gives without the number of tries."""
    parts = sections(apart(page)[1])
    return [row.what for row in README if shown(row, parts) is None]


def with_losses(text: str, page: str) -> str:
    """The page about losses with the table of `page`, without its rows of the launcher's part.

    Raises:
        ValueError: the markers or the table are missing.
    """
    before, _, after = apart(text)
    part = sections(apart(page)[1]).get(TITLES["losses"])
    if part is None:
        raise ValueError(f"the page has no table {TITLES['losses']!r}")
    table = [line for line in part.splitlines() if line.startswith("|") and not line.startswith("| - of that")]
    return "\n".join([f"{before}{BEGIN}", *table, f"{END}{after}"])


def shown(row: Shown, parts: Mapping[str, str]) -> str | None:
    """A row of the README's table: figures with their unit and, if torchrun has a figure, the ratio with two decimals.
    None if the page lacks the row, or the number of tries of a cell.

    Raises:
        ValueError: the page has the row twice.
    """
    title = TITLES[row.benchmark]
    found = re.findall(
        rf"^\| {re.escape(row.row)} \[(.+?)\] \| (.+?) \| (.+?) \|(?: +(\S*) *\|)?", parts.get(title, ""), re.M
    )
    if len(found) > 1:
        raise ValueError(f"expected one row {row.row!r} under {title!r}, found {len(found)}")
    if not found or not all(map(_tries, found[0][1:3])):
        return None
    unit, *values, ratio = found[0]
    if row.notes or not _FIGURE.fullmatch(values[1]):
        ratio = ""
    cells = [
        row.what,
        *(_with_unit(value, unit, row.notes) for value in values),
        f"{float(ratio):.2f}" if ratio else "",
    ]
    return "| " + " | ".join(cells) + " |"


_FIGURE = re.compile(r"([\d.]+)(?: \((.+)\))?")
_TRIES = re.compile(r"\d+ of (\d+)|(\d+) (?:tries|try)\b")
_ALL = re.compile(r"worst ([\d.]+), (\d+) tries")


def _tries(value: str) -> int:
    """The number of tries of a cell, or 0 if it gives none."""
    found = _TRIES.search(value)
    return int(found[1] or found[2]) if found else 0


def _with_unit(value: str, unit: str, notes: bool) -> str:
    found = _FIGURE.fullmatch(value)
    if not found:
        return value
    if notes and found[2]:
        return found[2]
    all_counted = _ALL.fullmatch(found[2] or "")
    note = f"worst {all_counted[1]}" if all_counted and _tries(value) >= ENOUGH else found[2]
    return f"{found[1]} {unit} ({note})"


def sections(measured: str) -> dict[str, str]:
    """The tables by title, and any text before them under ""."""
    parts = (part.strip() for part in re.split(r"^(?=### )", measured, flags=re.MULTILINE))
    return {_title(part): part for part in parts if part}


def _title(part: str) -> str:
    first = part.partition("\n")[0]
    return first.removeprefix("### ") if first.startswith("### ") else ""


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("results", nargs="*", type=Path, metavar="FILE", help="written by --json")
    made.add_argument(
        "--page", type=Path, default=DOCS / "project" / "benchmarks.md", help="(docs/project/benchmarks.md)"
    )
    made.add_argument("--plot", type=Path, default=DOCS / "img" / "rendezvous.png", help="(docs/img/rendezvous.png)")
    made.add_argument("--readme", type=Path, default=ROOT / "README.md", help="(README.md)")
    made.add_argument(
        "--survival", type=Path, default=DOCS / "concepts" / "what-survives.md", help="(docs/concepts/what-survives.md)"
    )
    made.add_argument("--print", action="store_true", help="only show the tables")
    return made


def main() -> int:
    """Returns 1 and prints the reason if a page has no place for the tables."""
    from benchmarks.gpu import section as gpu  # it imports this module

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
    for row in left_out(page):
        print(f"{arguments.page}: not measured, or without the number of tries: {row}", file=sys.stderr)
    return 0


def plotted(contents: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """Draw the plot if there are results for it. Returns whether there were any."""
    found = [report for _, report in merged(contents) if report["benchmark"] == "rendezvous"]
    for report in found:
        from benchmarks.plot import draw  # needs matplotlib

        draw(report["measurements"], path)
    return bool(found)


def image(page: Path, plot: Path) -> str:
    """The Markdown that shows the plot on the page."""
    return f"![Time against the number of agents, both axes logarithmic]({os.path.relpath(plot, page.parent)})"


if __name__ == "__main__":
    sys.exit(main())
