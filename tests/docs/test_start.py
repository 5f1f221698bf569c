"""Runs the commands of the tutorials in docs/start in order, and compares the output with the pages."""

from __future__ import annotations

import re
import signal

import pytest
from block_kinds import BLOCKS
from blocks import block_of, free_port
from test_block_jobs import assert_like

QUICKSTART, TWO = "docs/start/quickstart.md", "docs/start/two-machines.md"
VARIES = r"\d{4}-\S+Z|\d+|on node7:|File \".*train.py\"|\b[\w.]+:\d+|pids=\S+"


def test_quickstart_fails_then_recovers(shell):
    (shell.folder / "train.py").write_text(block_of(QUICKSTART, "import os"))
    fails, report, recovers, log = (b.text for b in BLOCKS if b.page == QUICKSTART and b.language != "python")
    assert_like(report, shell.run(fails, code=1), VARIES)
    assert block_of("docs/index.md", "Root cause") == report
    said = shell.run(recovers)
    assert_like(log, said, VARIES)
    assert said.count("rank 0: step 0") == 2


@pytest.mark.torch
def test_two_machines_continue_with_one(shell):
    """Runs both agents on this machine. The second agent leaves, rejoins, is killed and rejoins; then the job ends."""
    pytest.importorskip("elastic_c10d")
    script = block_of(TWO, "import os")
    (shell.folder / "train.py").write_text(script.replace("range(120)", "range(1200)"))  # a slow machine takes longer
    command = "exec " + block_of(TWO, "--nnodes=1:2").replace("node0:29400", f"127.0.0.1:{free_port()}")
    first, second = (shell.start(command, ELASTIC_NODE_ID=f"node{number}") for number in (0, 1))
    for agent in (first, second):
        agent.says("workers started")
    both = {agent: agent.said.count("node_rank=0") for agent in (first, second)}
    host = max(both, key=both.get)
    other = second if host is first else first
    name = "node1" if other is second else "node0"
    other.process.send_signal(signal.SIGINT)
    host.says("round=2 workers=1")
    assert_like(as_named(name, block_of(TWO, "left: received SIGINT")), host.said, VARIES)
    other = shell.start(command, ELASTIC_NODE_ID=name)
    other.says("workers started: round=3")
    other.process.kill()
    host.says("round=4 workers=1")
    assert_like(as_named(name, block_of(TWO, "its agent has ended")), host.said, VARIES)
    (shell.folder / "train.py").write_text(script.replace("range(120)", "range(1)"))
    last = shell.start(command, ELASTIC_NODE_ID=name)
    for agent in (last, host):
        agent.says("agent finished: state=SUCCEEDED")
        agent.ended(0)


def as_named(name, lines):
    """Return the page's lines, with the node's id instead of the default one."""
    return re.sub(r"\bnode1:\d+\.\w{8}", name, lines)
