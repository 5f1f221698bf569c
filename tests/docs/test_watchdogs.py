"""The watchdog in docs/extend/watchdogs.md, installed as the page describes, in a job and under its contract."""

from __future__ import annotations

import re
import sys

import pytest
from blocks import block_of, install

TRAIN = """
import os, time
for step in range(20):
    print(step)
    time.sleep(0.05)
if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
    time.sleep(600)
print("done")
"""


@pytest.fixture
def shell(shell, tmp_path):
    """A shell whose Python finds the page's distribution."""
    shell.environ = {
        **install("docs/extend/watchdogs.md", "class SilenceWatchdog", tmp_path / "site"),
        "PYTHONUNBUFFERED": "",
    }
    return shell


def test_silent_worker_is_killed_and_the_job_recovers(shell):
    (shell.folder / "train.py").write_text(TRAIN)
    command = block_of("docs/extend/watchdogs.md", "elastic run --watchdog=silence")
    here = command.replace("after=60", "after=3").replace("elastic run", "elastic run --nproc-per-node=2")
    said = shell.run(here, **shell.environ, ELASTIC_RDZV_ID="job7")
    assert re.search(r"worker hangs: local_rank=1 .*reason=\"hang: no output for \d+ s\"", said), said
    assert re.search(r"restart decided: cause=hang", said)
    assert (shell.folder / "logs" / "job7" / "round-2" / "rank-1.out").read_text().endswith("done\n")


def test_missing_log_files_are_reported_with_a_remedy(shell):
    (shell.folder / "train.py").write_text("print('done')\n")
    said = shell.run("elastic run --watchdog=silence train.py", **shell.environ)
    assert 'watchdog lost: reason="workers without log files; run with -t 3 or -r 3"' in said


def test_example_fulfils_its_contract(shell):
    (shell.folder / "test_silence.py").write_text(block_of("docs/extend/watchdogs.md", "WatchdogContract)"))
    said = shell.run(f"'{sys.executable}' -m pytest -q -rs -p no:cacheprovider test_silence.py", **shell.environ)
    assert re.search(r"\d passed, 11 skipped", said), said
    assert "the watchdog has no timers" in said


FAULTS = [
    ("if found != size", "if False", "once_per_round"),
    pytest.param(
        "                    del seen[worker]", "                    pass", "once_per_round", marks=pytest.mark.nightly
    ),
    pytest.param("        self.stopping.set()\n", "", "stop_is_prompt", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("right", "wrong", "test"), FAULTS)
def test_contract_detects_defects(shell, right, wrong, test):
    plugin = shell.folder / "site" / "elastic_silence" / "plugin.py"
    assert plugin.read_text().count(right) == 1
    plugin.write_text(plugin.read_text().replace(right, wrong))
    contract = block_of("docs/extend/watchdogs.md", "WatchdogContract)").replace(
        "hangs =", "report_within = 10\n    hangs ="
    )
    (shell.folder / "test_silence.py").write_text(contract)
    said = shell.run(f"'{sys.executable}' -m pytest -q -k '{test}' test_silence.py", code=1, **shell.environ)
    assert "1 failed" in said
