"""Libraries under warm start: forked workers must behave like workers that Python started.

Each program in `warm_libraries` runs twice on two workers, cold and warm. One worker is killed once, and the reports of
the last rounds are compared. `WARM_TABLE=FILE` writes the verdicts there as a table, one row per program.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from elastic_testing import eventually

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(sys.platform != "linux", reason="warm start is for Linux"),
]

PROGRAMS = Path(__file__).parent / "warm_libraries"
SOURCES = {
    path.stem: path.read_text() for path in sorted(PROGRAMS.glob("*.py")) if "import probe\n" in path.read_text()
}
LAST_IMPORT = "pydoc_data"  # as in `probe`
PATIENCE = 300
NEARLY_ALL, HALF = 0.95, 0.5  # of the modules: so many are `warm`, so many `partly`, and fewer `cold`
QUIET = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
QUIET |= {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": ""}


@dataclass
class Report:
    """The facts that one worker printed in one round, by kind and name. `lines`: its other output, without the parts
    that differ between two runs."""

    facts: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    lines: list[str] = field(default_factory=list)

    @property
    def imports(self):
        return next(iter(self.facts["imports"].values()))


@dataclass
class Run:
    """All reports by round and rank. `left`: modules that the template deferred, with the reasons. `log`: the agent's
    log."""

    code: int
    log: str
    reports: dict[tuple[int, int], Report]
    left: dict[str, str]

    @property
    def last(self):
        return max(number for number, _ in self.reports)

    def of_last(self):
        """The reports of the last round, by rank."""
        return {rank: report for (number, rank), report in sorted(self.reports.items()) if number == self.last}

    def seconds(self):
        return max(report.imports["seconds"] for report in self.of_last().values())


class Job:
    """Runs a program in a folder named `cold` or `warm`."""

    def __init__(self, elastic, source):
        elastic.through = ["env"]  # a separate interpreter
        self.elastic = elastic
        self.program = str(PROGRAMS / f"{source}.py")

    def run(self, warm):
        base = self.elastic.cwd
        self.elastic.cwd = folder = base / ("warm" if warm else "cold")
        folder.mkdir()
        try:
            return self._run(folder, warm)
        finally:
            self.elastic.cwd = base

    def _run(self, folder, warm):
        words = ["--standalone", "--nproc-per-node=2", "--max-restarts=2", "--redirects=3", f"--log-dir={folder}/logs"]
        words += ["--warm-start", f"--warm-start-cache={folder}/learned"] if warm else []
        home = {"HOME": str(folder), "XDG_CACHE_HOME": f"{folder}/cache", "XDG_CONFIG_HOME": f"{folder}/config"}
        process = self.elastic.start_to_files("agent", "run", *words, self.program, **QUIET, **home)
        log = folder / "agent.err"
        reached = [folder / f"reached-{rank}" for rank in range(2)]

        def over():
            return process.poll() is not None

        def is_ready():
            cached = self._learned(folder)
            return LAST_IMPORT in cached.get("modules", {}) or "warm start unavailable" in log.read_text()

        eventually(lambda: all(path.exists() for path in reached) or over(), timeout=PATIENCE)
        if warm:
            eventually(lambda: is_ready() or over(), timeout=PATIENCE)
        if not over():
            os.kill(int(reached[1].read_text()), signal.SIGKILL)
        eventually(over, timeout=PATIENCE)
        left = self._learned(folder).get("left", {})
        return Run(process.poll(), log.read_text(), self._reports(folder), left)

    def _learned(self, folder):
        for path in (folder / "learned").glob("warm-*.json"):
            return json.loads(path.read_text())
        return {}

    def _reports(self, folder):
        found = defaultdict(Report)
        for path in sorted(folder.glob("logs/[0-9a-f]*/round-*/rank-*.*")):
            number, rank = re.search(r"round-(\d+)/rank-(\d+)", str(path)).groups()
            report = found[int(number), int(rank)]
            for line in path.read_text().replace(str(folder), "FOLDER").splitlines():
                if line.startswith("probe "):
                    kind, _, rest = line.removeprefix("probe ").partition(" ")
                    name, _, value = rest.partition(": ")
                    report.facts[kind][name] = json.loads(value)
                else:
                    report.lines.append(f"{path.suffix[1:]}: {re.sub('[0-9]+', '#', line)}")
        return found


def differences(cold, warm):
    """Describe how the reports of the last rounds differ."""
    for rank, expected in cold.of_last().items():
        found = warm.of_last().get(rank, Report())
        for kind in ("result", "variable", "state"):
            yield from unlike(f"rank {rank}, {kind}", expected.facts[kind], found.facts[kind])
        yield from unlike(f"rank {rank}", {"lines": expected.lines}, {"lines": found.lines})
    yield from wrong_streams(cold, warm)


def unlike(where, expected, found):
    for name in expected.keys() | found.keys():
        if expected.get(name) != found.get(name):
            yield f"{where} {name}: {apart(expected.get(name), found.get(name))}"


def apart(expected, found):
    """Describe how two values differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        names = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
        return "; ".join(f"{name} {apart(expected.get(name), found.get(name))}" for name in names)
    if isinstance(expected, list) and isinstance(found, list):
        more, less = [one for one in found if one not in expected], [one for one in expected if one not in found]
        return f"only cold {less}, only warm {more}" if more or less else f"cold {expected}, warm {found}"
    return f"cold {expected}, warm {found}"


def wrong_streams(cold, warm):
    """Describe wrong random values. They must be equal if cold processes draw equal ones, and otherwise new."""
    for name in {name for report in cold.reports.values() for name in report.facts["random"]}:
        seen = {place: report.facts["random"].get(name) for place, report in cold.reports.items()}
        drawn = {place: report.facts["random"].get(name) for place, report in warm.reports.items()}
        for rank in range(2):
            value = drawn.get((warm.last, rank))
            before = [seen.get((number, rank)) for number in range(1, cold.last + 1)]
            if all(one == before[0] for one in before):
                if value != before[0]:
                    yield f"rank {rank}, random {name}: cold {before}, warm {value}"
                continue
            others = [*seen.values(), *(one for place, one in drawn.items() if place != (warm.last, rank))]
            if value is None or value in others:
                yield f"rank {rank}, random {name}: {value} again, in {others}"


def verdict(warm):
    """`warm`, `partly` or `cold`, by the share of modules imported when the last round's workers began."""
    imports = [report.imports for report in warm.of_last().values()]
    there = min(1 - len(one["missing"]) / one["needed"] for one in imports)
    return "warm" if there >= NEARLY_ALL else "partly" if there >= HALF else "cold"


class Table:
    """The verdicts, as Markdown. Each row rewrites the file, so an interrupted run leaves a partial table."""

    def __init__(self, path):
        self._path = path
        self._rows = []

    def add(self, program, word, cold, warm, wrong):
        library = program.rstrip("_").replace("_", ", ", 1)
        imports = next(iter(warm.of_last().values()), Report())
        there = left = seconds = ""
        if imports.facts["imports"]:
            missing = len(imports.imports["missing"])
            there, left = str(imports.imports["needed"] - missing), str(missing)
            seconds = f"{cold.seconds():.2f} → {warm.seconds():.2f}"
        causes = [f"{name} {why}" for name, why in warm.left.items() if not why.startswith(("imports ", "looks for "))]
        reasons = "; ".join(wrong or causes).replace("|", "\\|")
        self._rows.append(f"| {library} | {version(program)} | {word} | {there} | {left} | {reasons} | {seconds} |")
        if self._path:
            head = [
                "| library | version | verdict | modules there | left | reasons | seconds of imports, cold → warm |"
            ]
            Path(self._path).write_text("\n".join([*head, "|---|---|---|---|---|---|---|", *self._rows, ""]))


def library(program):
    return re.search(r'probe\.imported\("(\w+)', SOURCES[program]).group(1)


def version(program):
    return metadata.version(distributions()[library(program)][0])


@functools.cache
def distributions():
    return metadata.packages_distributions()


@pytest.fixture(scope="module")
def table():
    return Table(os.environ.get("WARM_TABLE"))


@pytest.mark.parametrize("program", SOURCES)
def test_library_behaves_the_same_warm_and_cold(program, elastic, table):
    if find_spec(library(program)) is None:
        pytest.skip(f"{library(program)} is not installed: tox run -e warm")
    job = Job(elastic, program)
    cold, warm = job.run(warm=False), job.run(warm=True)
    assert (cold.code, cold.last) == (0, 2), (cold.log, cold.reports)
    wrong = [f"the job failed: {warm.log}"] if warm.code else list(differences(cold, warm))
    table.add(program, "wrong" if wrong else verdict(warm), cold, warm, wrong)
    assert not wrong, "\n".join([*wrong, warm.log])
