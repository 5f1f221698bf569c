"""The page in a real browser, during a real job."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

import pytest
from chromium import a_browser
from job_of_nodes import free_port, kill

pytestmark = pytest.mark.nightly

WORK = """
import os, signal
os.write(os.open({fifo!r}, os.O_WRONLY), b"%s %d\\n" % (os.environ["RANK"].encode(), os.getpid()))
signal.pause()
"""


def test_page_explains_the_new_round_after_a_killed_worker(elastic, read_fifo):
    fifo, read = read_fifo
    script = elastic.script("work.py", WORK.format(fifo=fifo))
    port = free_port()
    flags = ("--nproc-per-node=2", "--max-restarts=2", "--rdzv-id=a-job", f"--health-port={port}")
    agent = elastic.start_to_files("agent", "run", *flags, script)
    first = dict(line.split() for line in read(2))
    with contextlib.ExitStack() as stack:
        page = stack.enter_context(a_browser())
        page.open(f"http://127.0.0.1:{port}/")
        page.shows("#run", "a-job")
        page.shows("#phase", "Running")
        page.shows("#rounds > li[data-round='1']", "running")
        assert {row.get_attribute("data-pid") for row in page.all("#workers tbody tr")} == set(first.values())
        page.shows("#members tbody tr", socket.gethostname(), "127.0.0.1")

        kill(int(first["1"]))
        second = dict(line.split() for line in read(2))
        page.shows("#rounds > li[data-round='2']", "running")
        ended = page.shows("#rounds > li[data-round='1']", "failure")
        assert "Ended: rank 1: killed by SIGKILL" in ended
        assert "Recovered in" in page.shows("#rounds > li[data-round='2']", "rendezvous")
        assert "Rank 1: killed by SIGKILL" in page.shows("#failure", "round 1")
        assert "1 of 2" in page.shows("#tiles", "Restart budget")
        for rank, pid in second.items():
            assert page.shows(f"#workers tr[data-pid='{pid}']", "running").startswith(rank)

        os.kill(agent.pid, signal.SIGTERM)
        agent.wait(60)
        page.shows("#banner", "has finished", "No response")
        assert page.faults() == []


FIRST_IS_DONE = """
import os, pathlib, time
while os.environ["RANK"] == "1" and not pathlib.Path({file!r}).exists():
    time.sleep(0.1)
"""


@pytest.mark.torch
def test_page_shows_round_of_finished_node_as_finishing(elastic, job):
    go = elastic.cwd / "go"
    script = elastic.script("work.py", FIRST_IS_DONE.format(file=str(go)))
    port = free_port()
    done = job.agent("a", "--nnodes=2", "--node-rank=0", f"--health-port={port}", script=script)
    done.says("store hosted")
    other = job.agent("b", "--nnodes=2", "--node-rank=1", script=script)
    with contextlib.ExitStack() as stack:
        page = stack.enter_context(a_browser())
        page.open(f"http://127.0.0.1:{port}/")
        page.shows("#phase", "Finishing")
        page.shows("#rounds > li[data-round='1']", "finishing")
        go.touch()
        assert [done.code(), other.code()] == [0, 0]
        assert page.faults() == []
