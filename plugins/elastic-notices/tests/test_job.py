"""Whole jobs in which a node gets a notice."""

from __future__ import annotations

import json
import signal
import time

import pytest
from job_of_nodes import Agent, eventually

pytestmark = pytest.mark.integration

TRAIN = """
import json, os, pathlib, sys, time
import elastic_core

node, world, step = sys.argv[1], os.environ["WORLD_SIZE"], 0
while not elastic_core.should_stop(step):
    pathlib.Path(f"trains-{node}-of-{world}").touch()
    time.sleep(0.02)
    step += 1
with pathlib.Path("saved").open("a") as saved:
    saved.write(json.dumps({"node": node, "world": world, "step": step, "why": elastic_core.stop_reason()}) + "\\n")
"""


@pytest.fixture
def train(elastic):
    return elastic.script("train.py", TRAIN)


def trains(elastic, node, world):
    eventually((elastic.cwd / f"trains-{node}-of-{world}").exists, f"{node} to train with {world}")


def announce(elastic, text):
    """Write the file in one step."""
    (elastic.cwd / "fresh").write_text(text)
    (elastic.cwd / "fresh").rename(elastic.cwd / "leave")


@pytest.mark.torch
def test_noticed_node_leaves_and_the_other_continues(elastic, job, train):
    a, b = (
        job.agent(name, "--nnodes=1:2", "--notices=file", f"--notice-file={file}", script=train)
        for name, file in (("a", "other"), ("b", "leave"))
    )
    for node in "ab":
        trains(elastic, node, 2)
    (elastic.cwd / "trains-a-of-1").unlink(missing_ok=True)  # if a round has formed without b
    announce(elastic, f"{time.time() + 40 + 2}\nrack 7 is serviced")
    assert b.code() == 10
    trains(elastic, "a", 1)
    a.signal(signal.SIGTERM)
    assert a.code() == 128 + signal.SIGTERM
    *both, alone = map(json.loads, (elastic.cwd / "saved").read_text().splitlines()[-3:])
    assert sorted(line["node"] for line in both) == ["a", "b"]
    assert {line["world"] for line in both} == {"2"}
    assert len({line["step"] for line in both}) == 1
    assert "rack 7 is serviced" in next(line["why"] for line in both if line["node"] == "b")
    assert (alone["node"], alone["world"]) == ("a", "1")


def test_withdrawn_notice_causes_no_restart(elastic, train):
    flags = ("--notices=file", "--notice-file=leave")
    agent = Agent("a", elastic.start_to_files("a", "run", *flags, train, "a"), elastic.cwd)
    trains(elastic, "a", 1)
    announce(elastic, f"{time.time() + 600}\nrack 7 is serviced")
    agent.says("notice received")
    (elastic.cwd / "leave").unlink()
    agent.says("notice withdrawn")
    (elastic.cwd / "trains-a-of-1").unlink()
    trains(elastic, "a", 1)
    agent.signal(signal.SIGTERM)
    assert agent.code() == 128 + signal.SIGTERM
    assert agent.err.count("workers started") == 1
    assert "restart decided" not in agent.err


def test_unknown_source_ends_the_launch(elastic, train):
    completed = elastic.run("--notices=asw", train, "a")
    assert completed.code == 2
    assert "--notices: no notice source is named 'asw'" in completed.err
