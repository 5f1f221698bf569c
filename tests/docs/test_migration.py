"""The page for torchrun's users and the code, ours and torch's, say the same."""

from __future__ import annotations

import inspect
import os
import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from elastic_core.config import SPECS
from elastic_core.config.explain import as_word
from elastic_core.hooks import RendezvousBackendRecord
from elastic_core.hooks.manager import PluginManager
from elastic_core.interfaces.workers import RoundPlan, WorkerRanks
from elastic_core.operate.commands import DRAIN, SERVE, STATUS
from elastic_core.workers.environment import EnvironmentPolicy, worker_environment

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migrate-from-torchrun.md").read_text()
VERDICT = re.compile(r"(same|better|different|new)\b")
PYTHON = re.findall(r"^### (elastic_\w+(?:\.\w+)?)$", PAGE, re.M)


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


TABLES = [("Flags", 2), ("Rendezvous options", 3), ("Read by the agent", 1), ("Set for the workers", 1)]


@pytest.mark.parametrize(("title", "column"), [*TABLES, *((name, 1) for name in PYTHON)])
def test_every_row_says_whether_it_is_the_same(title, column):
    assert [cells for cells in rows(title) if not VERDICT.match(cells[column])] == []


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
    ours = worker_environment(plan, plan.ranks[0], {}, EnvironmentPolicy(), "file")
    named = {name: cells[1] for cells in rows("Set for the workers") for name in words(cells[0])}
    assert {name for name, told in named.items() if "not set" not in told} == {*ours, "TORCHELASTIC_TIMER_FILE"}
    assert "TORCHELASTIC_SIGNALS_TO_HANDLE" in named


def public_names(module):
    if hasattr(module, "__all__"):
        return set(module.__all__)
    mine = {name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
    constants = {name for name in vars(module) if name.isupper()}
    not_ours = {"P", "T", "SPECS", "TYPE_CHECKING"}
    return {name for name in (mine | constants) - not_ours if not name.startswith("_")}


@pytest.mark.parametrize("name", PYTHON)
def test_every_public_name_is_there_and_no_other(name):
    if find_spec(name.partition(".")[0]) is None:
        pytest.skip("not installed")
    module, named = import_module(name), set()
    for cells in rows(name):
        where = re.search(r"same, in `(elastic_\w+)`", cells[1])
        for word in words(cells[0]):
            if "not here" in cells[1]:
                assert not hasattr(module, word), word
            elif where is None:
                named.add(word)
            elif find_spec(where[1]):
                assert hasattr(import_module(where[1]), word), word
    assert named == public_names(module)


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


TORCH = {
    "elastic_core.launch": ["torch.distributed.launcher.api"],
    "elastic_core.rendezvous": ["torch.distributed.elastic.rendezvous"],
    "elastic_core.agent": ["torch.distributed.elastic.agent.server"],
    "elastic_core.errors": ["torch.distributed.elastic.multiprocessing.errors"],
    "elastic_core.multiprocessing": ["torch.distributed.elastic.multiprocessing"],
    "elastic_core.metrics": ["torch.distributed.elastic.metrics"],
    "elastic_core.events": ["torch.distributed.elastic.events"],
    "elastic_core.watchdog": ["torch.distributed.elastic.timer"],
    "elastic_core.health": ["torch.distributed.elastic.agent.server.health_check_server"],
    "elastic_c10d": ["torch.distributed.elastic.rendezvous.c10d_rendezvous_backend"],
}


@pytest.mark.torch
@pytest.mark.parametrize("ours", TORCH)
def test_no_public_name_of_torchs_is_missing(ours):
    named = {word for cells in rows(ours) for word in words(cells[0])}
    for place in TORCH[ours]:
        module = import_module(place)
        theirs = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if (inspect.isclass(value) or inspect.isfunction(value))
            and value.__module__.startswith(place)
            and not name.startswith("_")
        ]
        assert set(theirs) - named == set()


def callables(value):
    """What of a class is called or asked for, without fields, which instances have."""
    kinds = (property, classmethod, staticmethod)
    return {
        name
        for base in value.__mro__
        if base.__module__.startswith("torch")
        for name, item in vars(base).items()
        if not name.startswith("_") and (inspect.isfunction(item) or isinstance(item, kinds))
    }


def parameters(value):
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []  # an enumeration, say
    return [item.name for item in found if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)]


def lacks(theirs, ours):
    """What torch's name has and ours has not."""
    missing = set(parameters(theirs)) - set(parameters(ours))
    if inspect.isclass(theirs):
        missing |= {name for name in callables(theirs) if not hasattr(ours, name) and name not in parameters(ours)}
    return missing


@pytest.mark.torch
@pytest.mark.parametrize("ours", TORCH)
def test_what_is_lacking_is_said_to_be_different(ours):
    extra = ["torch.distributed.elastic.rendezvous.dynamic_rendezvous"] if ours == "elastic_core.rendezvous" else []
    modules = [import_module(place) for place in [*TORCH[ours], *extra]]
    for cells in rows(ours):
        where = re.search(r"same, in `(elastic_\w+)`", cells[1])
        for word in words(cells[0]):
            theirs = next((getattr(module, word) for module in modules if hasattr(module, word)), None)
            mine = getattr(import_module(where[1] if where else ours), word, None)
            if mine is not None and (inspect.isclass(theirs) or inspect.isfunction(theirs)):
                assert not lacks(theirs, mine) or "ifferent" in cells[1], (word, lacks(theirs, mine))
