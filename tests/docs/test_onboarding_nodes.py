"""The traced round of several nodes is that of a real one: two agents, of which one stands still."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import tracing
from blocks import ROOT, Shell, free_port
from steps import is_call_of, names_in, of_page, told_in

from elastic_core.plugin import BACKEND_OPTIONS

PAGE = (ROOT / "docs" / "onboarding.md").read_text()
TITLE = "One round of several nodes, traced"
STEPS = of_page(PAGE, TITLE)
COMMAND = re.search(rf"## {TITLE}\n\n`elastic (.+?)`", PAGE)[1]
DATA = {"c10d", "Entry", "State", "interfaces/node.py"}
"""Names that are no functions, and no classes with functions of their own."""
BESIDES = {
    "run started",
    "rendezvous endpoint is loopback",
    "starting the store",
    "still waiting",
    "leads now",
    "agent finished",
}
"""What the log says before and after, on a slow machine, and when the other agent's entry was the older one."""
FILES = PAGE.split("\n### The files of a join\n")[1].split("\n## ")[0]
NAMED = set(re.findall(r"`((?:rendezvous|elastic_c10d)/\w+\.py)`", FILES))
SELDOM = {"rendezvous/messages.py"}
"""Files that have a part only where the others take their time."""

TRAIN = """
import os, time
while os.environ["WORLD_SIZE"] != "1":
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """The calls of the agent that hosts the store and those of the other one, and the events of the first one's log.
    Nobody waits for a last call: two are there, and later all that are known."""
    folder = tmp_path_factory.mktemp("traced")
    (folder / "train.py").write_text(TRAIN)
    shell = Shell(folder)
    words = COMMAND.replace("node0:29400", f"127.0.0.1:{free_port()}")
    environ = {"ELASTIC_RDZV_CONF": "last_call_timeout=120,keep_alive_interval=2", "ELASTIC_LOG_FORMAT": "json"}
    try:
        agents = {
            name: shell.start(f"exec '{sys.executable}' '{tracing.__file__}' {name} {words}", **environ)
            for name in "ab"
        }
        for agent in agents.values():
            agent.says("workers started")
        first, second = sorted(agents, key=lambda name: "store hosted" not in agents[name].said)
        os.kill(agents[second].process.pid, signal.SIGSTOP)
        said = agents[first].ended()
        agents[second].process.kill()
    finally:
        shell.close()
    events = [json.loads(line)["event"] for line in said.splitlines() if line.startswith('{"event"')]
    return *((folder / name).read_text().splitlines() for name in (first, second)), events


def real(test):
    """It runs a job of two agents."""
    for mark in (
        pytest.mark.torch,
        pytest.mark.skipif(sys.version_info < (3, 11), reason="calls have no qualified names there"),
    ):
        test = mark(test)
    return test


@real
def test_the_run_is_as_told(traced):
    calls, _, log = traced
    for step in STEPS:
        assert [name for name in names_in(step, DATA) if not any(is_call_of(name, call) for call in calls)] == [], step
    told = [event for step in STEPS for event in told_in(step)]
    assert [event for event in log if event not in BESIDES] == told, log


@real
def test_the_files_of_a_join_are_named(traced):
    """All of the two rooms, so that nobody has to look for another."""
    passed = set()
    for calls in traced[:2]:
        begin = next(n for n, call in enumerate(calls) if call.endswith("DynamicRendezvousHandler.next_rendezvous"))
        end = next(n for n, call in enumerate(calls) if call.endswith("LocalWorkers.start"))
        passed |= {call.partition(":")[0].removeprefix("elastic_core/") for call in calls[begin:end]}
    assert {name for name in passed if name.startswith(("rendezvous/", "elastic_c10d/"))} - SELDOM == NAMED - SELDOM
    assert f"Of these two rooms {len(NAMED)} files" in FILES


def test_a_node_is_lost_after_so_many_beats():
    (attempts,) = (option.default for option in BACKEND_OPTIONS if option.name == "keep_alive_max_attempt")
    assert {5: "after five beats"}[attempts] in STEPS[5]


def test_the_data_of_the_steps_are_in_the_code():
    sources = "\n".join(path.read_text() for path in Path(ROOT, "elastic_core", "rendezvous").glob("*.py"))
    assert {name for step in STEPS for name in re.findall(r"`([\w./]+)`", step)} >= DATA
    for name in ("Entry", "State"):
        assert f"\nclass {name}" in sources
