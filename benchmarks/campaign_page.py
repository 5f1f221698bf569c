"""Put the results of campaigns into docs/project/campaign.md: tables between its markers, and a plot.

    python -m benchmarks.campaign_page results.json ...

The files are written by `python -m benchmarks.campaign --json`. The tables combine the jobs of all files. For each
planted defect, only the last file's result is used. Jobs of torchrun have separate columns. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic_testing.campaign import KINDS, RULES

from benchmarks.page import BEGIN, DOCS, END, apart, facts

PLAIN = "c10d", "etcd", "etcd served", "sqlite", "static"


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _jobs(report: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = report["measurements"].get("jobs", [])
    return found


def _ours(job: Mapping[str, Any]) -> bool:
    return bool(job["shape"]["world"] != "torchrun")


class Campaign:
    """All jobs of some files."""

    def __init__(self, contents: Sequence[Mapping[str, Any]]) -> None:
        self.machine = contents[0]["machine"]
        reports = [report for content in contents for report in content["reports"]]
        self.settings = [report["settings"] for report in reports if any(map(_ours, _jobs(report)))]
        caught = [report for report in reports if report["measurements"].get("caught")]
        self.planting = sorted({report["settings"]["commit"] for report in caught})
        jobs = [job for report in reports for job in _jobs(report)]
        found = [one for report in caught for one in report["measurements"]["caught"]]
        self.caught = list({one["name"]: one for one in found}.values())
        self.torchrun = [job for job in jobs if not _ours(job)]
        self.jobs = [job for job in jobs if _ours(job)]
        self.worlds = [world for world in PLAIN if any(job["shape"]["world"] == world for job in self.jobs)]

    def of(self, world: str) -> list[Mapping[str, Any]]:
        """The jobs of this world."""
        return [job for job in self.jobs if job["shape"]["world"] == world]

    def about(self) -> str:
        """Date, machine and seeds."""
        commits = sorted({setting["commit"] for setting in self.settings})
        seeds = ", ".join(dict.fromkeys(f"`{setting['seed']}`" for setting in self.settings))
        count = sum(sum(job["faults"].values()) for job in self.jobs)
        return (
            f"{count:,} faults in {len(self.jobs)} jobs, commit {', '.join(commits)}, seeds {seeds}. "
            f"{facts(self.machine)}"
        )

    def faults(self) -> str:
        """Number of faults by kind and world."""
        none: Counter[str] = Counter()
        of_world = {world: sum((Counter(job["faults"]) for job in self.of(world)), none) for world in self.worlds}
        rows = [[KINDS[kind].what, *(of_world[world][kind] or "" for world in self.worlds)] for kind in KINDS
                if any(of_world[world][kind] for world in self.worlds)]  # fmt: skip
        totals = ["**total**", *(f"{sum(of_world[world].values()):,}" for world in self.worlds)]
        return table(["fault", *self.worlds], [*rows, totals])

    def verdicts(self) -> str:
        """Number of violations, in total and of each violated rule."""
        found = {world: Counter(one["rule"] for job in self.of(world) for one in job["violations"])
                 for world in self.worlds}  # fmt: skip
        rules = [*RULES, *(["campaign"] if any("campaign" in of for of in found.values()) else [])]
        rows = [[f"- of `{rule}`", *(found[world][rule] for world in self.worlds)] for rule in rules
                if any(of[rule] for of in found.values())]  # fmt: skip
        counts = [
            ["jobs", *(len(self.of(world)) for world in self.worlds)],
            ["waves of faults", *(sum(job["reached"] for job in self.of(world)) for world in self.worlds)],
            ["rounds", *(sum(job["rounds"] for job in self.of(world)) for world in self.worlds)],
            ["violations of any rule", *(sum(found[world].values()) for world in self.worlds)],
        ]
        return table(["", *self.worlds], [*counts, *rows])

    def recovery(self, real: bool = False) -> str:
        """The time until all nodes train again after a new round, by kind of fault, for elastic-core and torchrun."""
        rows = []
        for kind, described in KINDS.items():
            mine = [one for job in self.jobs if job["shape"]["real"] == real for one in job["alone"].get(kind, [])]
            times = [one for one in mine if one > 0]
            if not times or not described.rounds[1]:
                continue
            theirs = [job for job in self.torchrun if kind in job["faults"] and not real]
            lived = [one for job in theirs for one in job["alone"].get(kind, [])]
            reformed = [one for one in lived if one > 0]
            rows.append([
                described.what, len(mine), len(times), *(f"{value:.2f}" for value in
                (quantile(times, 0.5), quantile(times, 0.99), max(times))),
                f"{len(lived)} of {len(theirs)}" if theirs else "-",
                f"{quantile(reformed, 0.5):.1f}" if reformed else "-",
            ])  # fmt: skip
        head = ["fault, alone", "times", "with a new round", "median [s]", "99 % [s]", "worst [s]",
                "torchrun recovers", "median [s]"]  # fmt: skip
        return table(head, rows)

    def planted(self) -> str:
        """The rule and the seed that found each defect."""
        rows = [[f"`{one['name']}`", one["what"], one["world"], f"`{one['seed']}`" if one["rule"] else "-",
                 f"`{one['rule']}`" if one["rule"] else f"not in {one['tries']} tries"]
                for one in self.caught]  # fmt: skip
        return table(["defect", "what goes wrong", "world", "seed", "found by"], rows)

    def violations(self) -> str:
        """A list of all violations."""
        lines = [
            f"- {job['shape']['world']}, seed `{job['seed']}`, wave {one['wave']}: `{one['rule']}`: "
            + " ".join(one["what"].split())[:300]
            for job in self.jobs
            for one in job["violations"]
        ]
        return "\n".join(lines) if lines else "There were none."

    def draw(self, path: Path) -> None:
        """Every recovery as a dot, by kind of fault."""
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot

        kinds = [kind for kind in KINDS if KINDS[kind].rounds[1]
                 and any(one > 0 for job in self.jobs for one in job["alone"].get(kind, []))]  # fmt: skip
        figure, axes = pyplot.subplots(figsize=(8, 0.45 * len(kinds) + 1.2), layout="constrained")
        colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
        for world, colour in zip(self.worlds, colours, strict=False):
            points = [(one, number + 0.12 * (self.worlds.index(world) - 2)) for number, kind in enumerate(kinds)
                      for job in self.of(world) for one in job["alone"].get(kind, []) if one > 0]  # fmt: skip
            if points:
                axes.plot(*zip(*points, strict=True), ".", color=colour, alpha=0.5, markersize=4, label=world)
        axes.set(xscale="log", xlabel="from the fault until all nodes train again [s]")
        axes.set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds])
        axes.invert_yaxis()
        axes.grid(visible=True, which="major", alpha=0.3)
        figure.legend(loc="outside upper center", ncols=len(self.worlds), fontsize="small")
        figure.savefig(path, dpi=150, metadata={"Software": None})
        pyplot.close(figure)

    def text(self) -> str:
        """All sections."""
        parts = [
            self.about(),
            "### Faults",
            self.faults(),
            "### Verdicts",
            self.verdicts(),
            "Each violation:",
            self.violations(),
            "### Recovery",
            self.recovery(),
            "With workers that train with torch and DDP, a twentieth of the jobs:",
            self.recovery(real=True),
            "![Recovery times by kind of fault, logarithmic](../img/campaign.png)",
        ]
        found = sum(bool(one["rule"]) for one in self.caught)
        planted = f"{found} of {len(self.caught)} are found (commits {', '.join(self.planting)})."
        return "\n\n".join([*parts, "### Planted defects", planted, self.planted()] if self.caught else parts)


def main() -> int:
    """Exits with 1 if the page lacks the markers."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("results", nargs="+", type=Path, metavar="FILE")
    made.add_argument("--page", type=Path, default=DOCS / "project" / "campaign.md", help="(docs/project/campaign.md)")
    arguments = made.parse_args()
    campaign = Campaign([json.loads(path.read_text()) for path in arguments.results])
    try:
        before, _, after = apart(arguments.page.read_text())
    except ValueError as error:
        print(f"error: {arguments.page}: {error}", file=sys.stderr)
        return 1
    campaign.draw(arguments.page.parents[1] / "img" / "campaign.png")
    arguments.page.write_text(f"{before}{BEGIN}\n\n{campaign.text()}\n\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
