"""The page for torchrun's users and the code, ours and torch's, say the same."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest

from elastic_core.config import SPECS
from elastic_core.config.explain import as_word
from elastic_core.hooks import RendezvousBackendRecord
from elastic_core.hooks.manager import PluginManager
from elastic_core.interfaces.workers import RoundPlan, WorkerRanks
from elastic_core.operate.commands import DRAIN, SERVE, STATUS
from elastic_core.workers.process import EnvironmentPolicy

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "migrate-from-torchrun.md").read_text()


def section(title):
    """The text below a heading, up to the next of its rank or above."""
    marks, start = re.search(rf"^(#+) {re.escape(title)}\n()", PAGE, re.M).span(1), PAGE.index(f"# {title}\n")
    rest = PAGE[start + len(title) + 3 :]
    end = re.search(rf"^#{{1,{marks[1] - marks[0]}}} ", rest, re.M)
    return rest[: end.start()] if end else rest


def rows(title):
    """The rows of the table below a heading, as lists of cells, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def words(cell):
    return re.findall(r"`([^`]+)`", cell)


@cache
def flags():
    return {words(cells[0])[0].lstrip("-").replace("-", "_"): cells for cells in rows("Flags")}


@cache
def backends():
    provided = PluginManager.load(os.environ).records(RendezvousBackendRecord)
    return {item.record.name: item.record for item in provided if item.record.options is not None}


def test_every_flag_of_torchruns_is_there_with_the_default_it_has_here():
    assert set(flags()) == {name for name, spec in SPECS.items() if spec.torchrun}
    shown = {name: words(cells[1])[0] for name, cells in flags().items()}
    assert shown == {name: "unset" if SPECS[name].default == "" else as_word(SPECS[name].default) for name in flags()}
    assert [name for name in flags() if SPECS[name].short and SPECS[name].short not in flags()[name][0]] == []


def test_every_flag_of_ours_is_there_and_no_other():
    known = {flag for command in (STATUS, DRAIN, SERVE) for flag in (spec.flag for spec in command.specs.values())}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named >= {spec.flag for spec in SPECS.values()}
    assert named <= {spec.flag for spec in SPECS.values()} | known | {"--help", "--epochs"}


def test_every_option_of_the_installed_backends_is_there():
    named = {
        (backend, option)
        for cells in rows("Rendezvous options")
        for backend in cells[1].split(", ")
        for option in words(cells[0])
    }
    ours = {(name, option.name) for name, record in backends().items() for option in record.options}
    assert {pair for pair in named if pair[0] in backends()} == ours
    assert {name for name, _ in named} == {"c10d", "static", "file", "local", "etcd", "etcd-legacy"}


def test_the_defaults_of_options_are_the_backends():
    for cells in rows("Rendezvous options"):
        for name in set(cells[1].split(", ")) & backends().keys():
            declared = {option.name: option.default for option in backends()[name].options}
            for option in words(cells[0]):
                default = declared[option]
                shown = "unset" if default is None else f"{default:g}" if isinstance(default, float) else str(default)
                assert words(cells[2]) == [shown], (name, option)


def sources():
    code = [*(ROOT / "elastic_core").rglob("*.py"), *(ROOT / "plugins").glob("*/elastic_*/**/*.py")]
    return "\n".join(path.read_text() for path in code)


def test_every_variable_that_the_agent_reads_is_there_and_no_other():
    read, text = rows("Read by the agent"), sources()
    named = {name: cells[1] for cells in read for name in words(cells[0])}
    theirs = {name for spec in SPECS.values() for name in spec.variables() if not name.startswith("ELASTIC_")}
    assert theirs <= set(named)
    assert {name for name in named if name.startswith("PET_")} <= theirs
    for name in set(named) - theirs:
        assert ("not read" in named[name]) == (name not in text), name


def test_every_variable_of_torchruns_workers_is_there():
    plan = RoundPlan(1, "job", "node", "role", 0, 1, 2, 2, "::1", 1, False, 0, 0, (WorkerRanks(0, 0, 0),) * 2)
    ours = EnvironmentPolicy()(plan, plan.ranks[0], {}, "file")
    named = {name: cells[1] for cells in rows("Set for the workers") for name in words(cells[0])}
    assert {name for name, told in named.items() if "not set" not in told} == {*ours, "TORCHELASTIC_TIMER_FILE"}
    assert "TORCHELASTIC_SIGNALS_TO_HANDLE" in named


@pytest.mark.torch
def test_no_flag_of_torchs_parser_is_missing():
    from torch.distributed.run import get_args_parser

    nothing = {"unset", "empty", "none", "", "[]"}
    parser = get_args_parser()
    parser.prog = "torchrun"  # else it is what runs the tests, and that may look like a flag
    defaults = vars(parser.parse_args(["script"]))
    assert set(defaults) == {*flags(), "training_script", "training_script_args"}
    for name in flags():
        theirs, ours = str(defaults[name]), words(flags()[name][1])[0]
        same = theirs in (ours, ours.title()) or ({theirs.lower(), ours} <= nothing and name != "rdzv_id")
        assert same or "torchrun: " in flags()[name][2], (name, theirs)
    short = set(re.findall(r"(?<![\w-])-[a-z]\b", parser.format_help()))
    assert short == {word for cells in rows("Flags") for word in words(cells[0]) if len(word) == 2} | {"-h"}


@pytest.mark.torch
def test_torchs_timeouts_are_those_that_the_page_tells():
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout

    timeout = RendezvousTimeout()
    for name in ("join", "last_call", "close", "heartbeat"):
        (cells,) = (row for row in rows("Rendezvous options") if f"{name}_timeout" in row[0] and "c10d" in row[1])
        theirs = f"{getattr(timeout, name).total_seconds():g}"
        assert words(cells[2]) == [theirs] or f"(torchrun: {theirs})" in cells[3], cells
