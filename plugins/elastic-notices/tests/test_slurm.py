"""The sources of Slurm, with scripts in place of its commands. `test_slurm_cluster.py` uses a real Slurm."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from elastic_notices.slurm import decode_end, decode_state
from elastic_testing import NoticeContract

from elastic_core.plugin import ConfigurationError, Notice

NOW = 1_700_000_000.0
LIMIT = "the Slurm job reaches its time limit"


def test_end_is_that_of_this_job():
    output = f"41 {NOW + 9:.0f}\n42 {NOW + 60:.0f}\n43 N/A\n"
    assert decode_end(output, "42", NOW) == Notice(LIMIT, NOW + 60)
    assert decode_end(output, "42", NOW + 61) == Notice(LIMIT)
    assert decode_end(output, "43", NOW) is None


@pytest.mark.parametrize(
    "output", ["", "41 1700000000\n", "42 soon\n", "42 2023-11-14T22:14:20\n", f"42 {'9' * 400}\n", "42\n", "42 9\n"]
)
def test_unknown_end_is_an_error(output):
    with pytest.raises(ValueError, match=r"\w"):
        decode_end(output, "42", NOW)


@pytest.mark.parametrize(
    ("output", "state"),
    [
        *(("mixed\n", None), ("allocated*\nallocated*\n", None), ("idle~\n", None), ("reserved\n", None)),
        *(("draining\n", "draining"), ("draining@\ndraining@\n", "draining"), ("drained*\n", "drained")),
        *(("failing\n", "failing"), ("allocated\ndraining\n", "draining")),
    ],
)
def test_drained_node_must_leave(output, state):
    assert decode_state(output) == (state and Notice(f"Slurm reports this node as {state}"))


def test_unknown_node_is_an_error():
    with pytest.raises(ValueError, match="does not list"):
        decode_state("")


class Commands:
    """Scripts `squeue` and `sinfo`, which check their arguments and print what the test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, *arguments: str, then: str = 'cat "$0.out"') -> None:
        script = f'[ "$*" = "{" ".join(arguments)}" ] && [ "$SLURM_TIME_FORMAT" = %s ] || exit 3\n{then}\n'
        (self.folder / name).write_text(f"#!/bin/sh\n{script}")
        (self.folder / name).chmod(0o755)

    def set(self, name: str, output: str) -> None:
        fresh = self.folder / "fresh"
        fresh.write_text(output)
        fresh.replace(self.folder / f"{name}.out")


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    commands = Commands(tmp_path)
    commands.write("squeue", "--noheader", "--jobs", "42", "--format", "%A %e")
    commands.write("sinfo", "--noheader", "--all", "--nodes", "n7", "--format", "%T")
    return commands


@pytest.mark.integration
class TestSlurm(NoticeContract):
    @pytest.fixture(
        params=[
            ("slurm", "squeue", "42 N/A\n", lambda: f"42 {int(time.time()) + 100}\n"),
            ("slurm-node", "sinfo", "mixed\n", lambda: "draining\n"),
        ],
        ids=["job", "node"],
    )
    def kind(self, request):
        return request.param

    @pytest.fixture
    def source(self, start, withdraw, kind):
        withdraw()
        return lambda pause: start(kind[0], pause)

    @pytest.fixture
    def announce(self, commands, kind):
        _, command, _, output = kind
        return lambda: commands.set(command, output())

    @pytest.fixture
    def withdraw(self, commands, kind):
        _, command, output, _ = kind
        return lambda: commands.set(command, output)


@pytest.mark.integration
def test_extension_replaces_the_notice(start, commands, following):
    now = int(time.time())
    notices = start("slurm")
    for end in (now + 100, now + 200):
        commands.set("squeue", f"42 {end}\n")
        assert following(notices) == Notice(LIMIT, end)


@pytest.mark.integration
def test_failed_command_keeps_the_notice(start, commands, log, following):
    end = int(time.time()) + 100
    commands.set("squeue", f"42 {end}\n")
    paused = []
    notices = start("slurm", lambda seconds: paused.append(seconds) or len(paused) < 4)
    assert following(notices) == Notice(LIMIT, end)
    commands.write("squeue", "", then="")
    assert list(notices) == []
    (reason,) = log.reasons
    assert reason.startswith("squeue failed")
    assert paused == [60.0] * 4


@pytest.mark.integration
def test_interval_is_at_least_that_of_slurm(start, commands):
    paused = []
    for given in (1.0, 300.0):
        for name in ("slurm", "slurm-node"):
            list(start(name, lambda seconds: bool(paused.append(seconds)), notice_interval=given))
    assert paused == [60.0, 30.0, 300.0, 300.0]


@pytest.mark.parametrize("name", ["slurm", "slurm-node"])
def test_source_outside_a_job_is_a_configuration_error(start, monkeypatch, name):
    for variable in ("SLURM_JOB_ID", "SLURMD_NODENAME"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigurationError, match="requires a Slurm job, but SLURM"):
        start(name)


def test_missing_command_is_a_configuration_error(start, commands, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    for name, command in (("slurm", "squeue"), ("slurm-node", "sinfo")):
        with pytest.raises(ConfigurationError, match=f"requires {command}, which is not on the PATH"):
            start(name)


@pytest.mark.integration
def test_variable_is_used_until_squeue_answers(start, commands, monkeypatch, log):
    now = int(time.time())
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(now + 100))
    commands.write("squeue", "", then="")
    left = iter(["as before", f"42 {now + 200}\n", "fails"])

    def pause(seconds):
        output = next(left, None)
        if output and output.startswith("42"):
            commands.write("squeue", "--noheader", "--jobs", "42", "--format", "%A %e")
            commands.set("squeue", output)
        elif output == "fails":
            commands.write("squeue", "", then="")
        return output is not None

    assert [notice.at for notice in start("slurm", pause)] == [now + 100, now + 200]
    assert len(log.reasons) == 1


@pytest.mark.integration
def test_variable_is_enough_without_squeue(start, commands, monkeypatch, following):
    end = int(time.time()) + 100
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(end))
    assert following(start("slurm")) == Notice(LIMIT, end)
