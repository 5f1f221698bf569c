"""Every flag of torchrun's parser is read here with the same result, in every spelling and as a variable."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from beside_torchrun import PAGE, RefusedLine, Torchrun

from elastic_core.config import SPECS, NodeRange
from elastic_core.errors import ConfigurationError

pytestmark = pytest.mark.torch

NUMBERS = ("0", "3", "007", "+2", "1_0")
TEXTS = ("a", "a-b", "-1", "7", "two words", "with=sign")
VALUES: dict[str, tuple[str, ...]] = {
    "nnodes": ("1", "2", "1:1", "1:4", "02", " 2 "),
    "nproc_per_node": ("1", "2", "08", "auto", "cpu"),
    "rdzv_backend": ("static", "c10d", "etcd-v2", "etcd"),
    "rdzv_endpoint": ("host", "host:1", "host:0", "127.0.0.1:29400", "[::1]:1", "[::1]"),
    "rdzv_id": TEXTS,
    "rdzv_conf": (
        "timeout=9",
        "timeout=9,rank=0",
        " timeout = 9 , rank = 0 ",
        "etcd_prefix=a=b",
        "timeout=1,timeout=2",
    ),
    "max_restarts": NUMBERS,
    "monitor_interval": ("0.1", "5", "1e-1", ".5"),
    "event_log_handler": ("null", "console"),
    "role": (*TEXTS, ""),
    "log_dir": ("logs", "./logs/deep", "/dev/null"),
    "redirects": ("0", "1", "2", "3", "0:3", "0:1,1:2,2:0"),
    "tee": ("0", "1", "2", "3", "0:3", "0:1,1:2,2:0"),
    "local_ranks_filter": ("0", "0,1,2", " 0, 1", "1,1"),
    "duplicate_stdout_filters": ("a", "a,b", "a,,b,c", "two words"),
    "duplicate_stderr_filters": ("a", "a,b", "a,,b,c", "two words"),
    "node_rank": NUMBERS[:-1],
    "master_addr": ("127.0.0.1", "localhost", "[::1]", "::1"),
    "master_port": (*NUMBERS, "65535"),
    "local_addr": ("127.0.0.1", "localhost", "::1"),
    "logs_specs": ("mine",),
    "numa_binding": (),
    "start_method": (),
    "signals_to_handle": ("SIGTERM", "SIGUSR1,SIGUSR2", "SIGTERM, SIGINT"),
    "shutdown_timeout": NUMBERS,
}
"""Values by setting; choices and defaults come from the parser."""

TO_OURS: dict[str, Callable[[Torchrun, Any], Any]] = {
    "nnodes": lambda torchrun, value: NodeRange(*torchrun.module.parse_min_max_nnodes(value)),
    "nproc_per_node": lambda _, value: int(value) if value.isdigit() else value,
    "rdzv_conf": lambda torchrun, value: torchrun.options(value),
    "log_dir": lambda _, value: None if value is None else Path(value),
    "redirects": lambda torchrun, value: torchrun.streams(value),
    "tee": lambda torchrun, value: torchrun.streams(value),
    "local_ranks_filter": lambda _, value: frozenset(map(int, value.split(","))) if value else frozenset(),
    "duplicate_stdout_filters": lambda _, value: tuple(value),
    "duplicate_stderr_filters": lambda _, value: tuple(value),
    "signals_to_handle": lambda _, value: [name.strip() for name in value.split(",")],
    "shutdown_timeout": lambda _, value: 30 if value is None else value,
}
"""Converts torchrun's parsed values to values of our settings, if they differ."""

TO_THEIRS: dict[str, Callable[[Any], Any]] = {
    "redirects": lambda streams: dict(streams.named) or streams.everywhere,
    "tee": lambda streams: dict(streams.named) or streams.everywhere,
    "signals_to_handle": lambda signals: [each.name for each in signals],
}

AROUND = ["--nnodes=8", "--rdzv-backend=c10d", "--rdzv-endpoint=host:29400", "--rdzv-id=job"]
"""Makes every flag valid: a rank of 7 needs eight nodes, and these need an endpoint and an id."""
ALONE: dict[str, list[str]] = {"standalone": [], "rdzv_endpoint": ["--rdzv-backend=c10d"]}

NOT_READ = {"logs_specs", "numa_binding"}
"""Flags that torchrun reads from no variable."""


def actions() -> dict[str, Any]:
    """The flags of torchrun's parser except --help, by setting."""
    from torch.distributed.run import get_args_parser

    return {it.dest: it for it in get_args_parser()._actions if it.option_strings and it.dest != "help"}


def values(action) -> tuple[str | None, ...]:
    """Values to test; None for a flag without a value."""
    if action.nargs == 0:
        return (None,)
    default = [action.default] if isinstance(action.default, str) else []
    return tuple(dict.fromkeys([*(action.choices or ()), *VALUES[action.dest], *default]))


def spellings(action, value: str | None):
    """A flag and its value in every form that torchrun's parser accepts."""
    for name in action.option_strings:
        if value is None:
            yield [name]
            continue
        yield [f"{name}={value}"]
        if not value.startswith("-") or value[1:].isdigit():
            yield [name, value]
        if not name.startswith("--") and value:
            yield [name + value]


def meaning(name: str, torchrun: Torchrun, args: Any) -> Any:
    value = getattr(args, name)
    return TO_OURS[name](torchrun, value) if name in TO_OURS else value


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.torchrun])
def test_flag_has_torchruns_meaning_in_every_spelling(name, torchrun, elastic):
    action, around = actions()[name], ALONE.get(name, AROUND)
    lines = []
    for value in values(action):
        lines += [([*around, *words, "worker.py"], {}) for words in spellings(action, value)]
        if value != "" and name not in NOT_READ:
            variable = {f"PET_{name.upper()}": value or "1"}
            lines.append(([*_without(around, action), "worker.py"], variable))
    for words, environ in lines:
        args, ours = torchrun.parse(words, environ), elastic.settings(words, environ)
        found = TO_THEIRS.get(name, lambda it: it)(getattr(ours, name))
        assert found == meaning(name, torchrun, args), (words, environ)
    assert len(lines) >= len(action.option_strings)


def _without(words: list[str], action) -> list[str]:
    """Remove the flag, which would override the variable."""
    return [word for word in words if word.partition("=")[0] not in action.option_strings]


def test_torchrun_accepts_the_tested_values(torchrun):
    """The values above are accepted not only by its parser."""
    skipped = {"rdzv_backend", "rdzv_endpoint", "logs_specs"}  # the generated lines have these with other flags
    for name, action in actions().items():
        for value in () if name in skipped else values(action):
            torchrun.read([*ALONE.get(name, AROUND), *next(spellings(action, value)), "worker.py"])


def test_every_torchrun_flag_is_tested():
    assert set(actions()) == {name for name, spec in SPECS.items() if spec.torchrun}
    assert {name for name, action in actions().items() if action.nargs != 0} == set(VALUES)
    assert [name for name, action in actions().items() if not values(action)] == []


def test_page_names_flags_torchrun_reads_from_no_variable(torchrun):
    def is_read(name: str) -> bool:
        args = torchrun.parse(["worker.py"], {f"PET_{name.upper()}": "4"})
        return getattr(args, name) != getattr(torchrun.parse(["worker.py"]), name)

    assert {name for name in actions() if not is_read(name)} == NOT_READ
    assert "as torchrun does, and also `PET_NUMA_BINDING` and `PET_LOGS_SPECS`" in PAGE


def test_flags_without_a_value_are_rejected_by_both(torchrun, elastic):
    for action in actions().values():
        words = [action.option_strings[-1]]
        if action.nargs != 0:
            with pytest.raises(RefusedLine):
                torchrun.parse(words)
            with pytest.raises(ConfigurationError):
                elastic.settings(words)


@pytest.mark.parametrize(
    "words",
    [
        "worker.py --nnodes=3 -m --standalone",
        "-- worker.py -x",
        "worker.py x -- y",
        "--role=a -- worker.py --role b",
        "-m worker -h --help",
        "--node-rank -0 worker.py",
        "worker.py ${local_rank} --rank=${local_rank}",
    ],
)
def test_script_arguments_match_torchrun(words, torchrun, elastic):
    args, ours = torchrun.parse(words.split()), elastic.read(words.split())
    assert (ours.script, list(ours.script_args)) == (args.training_script, args.training_script_args)


def test_two_dashes_after_the_script_are_passed_to_it(torchrun, elastic):
    words = ["worker.py", "--", "x"]
    assert torchrun.parse(words).training_script_args == ["x"]
    assert elastic.read(words).script_args == ("--", "x")
    assert "A leading `--` among the script's arguments is dropped." in PAGE


def test_repeated_flags_match_torchrun_except_options(torchrun, elastic):
    line = "--role=a --role b --max-restarts=1 --max_restarts=2 --standalone --standalone worker.py"
    args, ours = torchrun.parse(line.split()), elastic.settings(line.split())
    assert (ours.role, ours.max_restarts) == (args.role, args.max_restarts) == ("b", 2)
    twice = ["--rdzv-conf=timeout=1", "--rdzv_conf", "rank=0", "worker.py"]
    assert torchrun.options(torchrun.parse(twice).rdzv_conf) == {"rank": "0"}
    assert elastic.settings(twice).rdzv_conf == {"timeout": "1", "rank": "0"}
    assert "repeated flags are combined" in PAGE


def test_flag_overrides_its_variable(torchrun, elastic):
    environ = {f"PET_{name}": value for name, value in {"ROLE": "a", "STANDALONE": "0", "MAX_RESTARTS": "1"}.items()}
    words = ["--role=b", "--standalone", "worker.py"]
    args, ours = torchrun.parse(words, environ), elastic.settings(words, environ)
    assert (ours.role, ours.max_restarts, ours.standalone) == (args.role, args.max_restarts, args.standalone)
    assert not elastic.settings(["worker.py"], environ).standalone
    assert not any(name.startswith("PET_") for name in os.environ)
