"""The page for users of torchrun agrees with our code and with torch's."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest

from elastic_core.config import SPECS, command_specs
from elastic_core.config.explain import as_word
from elastic_core.hooks.manager import PluginManager
from elastic_core.interfaces.workers import RoundPlan, WorkerRanks
from elastic_core.operate.commands import BUILT_IN
from elastic_core.parsing import not_needed
from elastic_core.plugin import RendezvousBackendRecord
from elastic_core.workers.process import EnvironmentPolicy

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "migrate-from-torchrun.md").read_text()
UNCHANGED = re.search(r"^.* are unchanged\.", PAGE, re.M)[0]
"""The sentence about options that are as with torchrun."""


def rows(head):
    """Return the rows, as lists of cells, of the table whose first column has this header."""
    (body,) = re.findall(rf"^\| {re.escape(head)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.M)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in body.splitlines()]


def words(cell):
    return re.findall(r"`([^`]+)`", cell)


def sentence(start):
    """Return the text after these words, up to the next full stop."""
    return PAGE.partition(start)[2].partition(".")[0]


@cache
def flags():
    """Return torchrun's flags that have another name here, by setting."""
    long = [(word, cells) for cells in rows("flag") for word in words(cells[0]) if word.startswith("--")]
    return {word.lstrip("-").replace("-", "_"): cells for word, cells in long}


@cache
def same_flags():
    return set(words(sentence("mean the same and have the same default:")))


@cache
def backends():
    provided = PluginManager.load(os.environ).records(RendezvousBackendRecord)
    return {item.record.name: item.record for item in provided if item.record.options is not None}


def test_every_torchrun_flag_is_in_the_table():
    same = {name.lstrip("-").replace("-", "_") for name in same_flags() if name.startswith("--")}
    assert same & set(flags()) == set()
    assert same | set(flags()) == {name for name, spec in SPECS.items() if spec.torchrun}
    named = same_flags() | {word for cells in rows("flag") for word in words(cells[0])}
    assert {spec.short for spec in SPECS.values() if spec.short} == {word for word in named if len(word) == 2}


def test_table_lists_exactly_our_flags():
    known = {spec.flag for record in BUILT_IN.values() for spec in command_specs(record).values()}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named >= {spec.flag for spec in SPECS.values()}
    assert named <= {spec.flag for spec in SPECS.values()} | known | {"--epochs"}


def test_every_torchrun_option_is_in_the_table():
    ours = {option.name for record in backends().values() for option in record.options}
    named = {word.partition("=")[0] for cells in rows("option") for word in words(cells[0])} - {"static", "etcd"}
    named |= set(words(UNCHANGED))
    assert set(not_needed((), ours)) <= named
    assert len(backends()) < 5 or named <= ours


def defaults(cell):
    """Return each backend's number in a cell such as "5 s; `etcd`: 30 s". A number without a backend is c10d's."""
    for part in cell.split("; "):
        if found := re.match(r"(?:(`.*`): )?(\d+)\b", part):
            yield from ((name, float(found[2])) for name in words(found[1] or "`c10d`"))


def test_documented_option_defaults_equal_the_backends():
    shown = {(words(cells[0])[0], *default) for cells in rows("option") for default in defaults(cells[2])}
    shown |= {("join_timeout", "static", 600.0), ("timeout", "etcd-legacy", 600.0)}
    declared = {
        (option.name, name, option.default)
        for name, record in backends().items()
        for option in record.options
        if (option.name, name) in {(option, name) for option, name, _ in shown}
    }
    assert {row for row in shown if row[1] in backends()} == declared
    assert "`timeout` (600 s)" in UNCHANGED
    assert len(shown) == 11


def sources():
    code = [*(ROOT / "elastic_core").rglob("*.py"), *(ROOT / "plugins").glob("*/elastic_*/**/*.py")]
    return "\n".join(path.read_text() for path in code)


def test_other_variables_are_read_unless_the_page_says_otherwise():
    text = sources()
    for cells in rows("read by the agent"):
        for name in words(cells[0]):
            assert (cells[1] == "not read") == (name not in text), name


def test_other_worker_variables_are_set_unless_the_page_says_otherwise():
    plan = RoundPlan(1, "job", "node", "role", 0, 1, 2, 2, "::1", 1, False, 0, 0, (WorkerRanks(0, 0, 0),) * 2)
    ours = EnvironmentPolicy()(plan, plan.ranks[0], {}, "file")
    for cells in rows("set for the workers"):
        for name in words(cells[0]):
            assert (cells[1] == "not set") == (name not in ours), name


@pytest.mark.torch
def test_page_covers_torchs_parser():
    from torch.distributed.run import get_args_parser

    nothing = {"unset", "empty", "none", "", "[]"}
    parser = get_args_parser()
    parser.prog = "torchrun"  # otherwise it would be the test runner's name, which may look like a flag
    defaults = vars(parser.parse_args(["script"]))
    same = {name.lstrip("-").replace("-", "_") for name in same_flags() if name.startswith("--")}
    assert set(defaults) == {*flags(), *same, "training_script", "training_script_args"}
    for name, theirs in ((name, str(defaults[name])) for name in {*flags(), *same}):
        ours = "unset" if SPECS[name].default == "" else as_word(SPECS[name].default)
        alike = theirs in (ours, ours.title()) or ({theirs.lower(), ours} <= nothing and name != "rdzv_id")
        assert alike or (name in flags() and "torchrun: " in flags()[name][1]), (name, theirs)
    short = set(re.findall(r"(?<![\w-])-[a-z]\b", parser.format_help())) - {"-h"}
    assert short == {spec.short for spec in SPECS.values() if spec.short}


@pytest.mark.torch
def test_documented_timeouts_equal_torchs():
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout

    timeout = RendezvousTimeout()
    shown = {words(cells[0])[0]: cells[1] for cells in rows("option")}
    for name in ("last_call", "close", "heartbeat"):
        assert shown[f"{name}_timeout"] == f"{getattr(timeout, name).total_seconds():g} s"
