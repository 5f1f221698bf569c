"""The health endpoint of real jobs, from the start of an agent to its end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from asking import ask
from job_of_nodes import eventually, free_port, kill

# Reports readiness, and on SIGTERM ends; on n0 only once the test lets it go.
HOLD = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
os.write(os.open({fifo!r}, os.O_WRONLY), b"ready\\n")
signal.sigwait({{signal.SIGTERM}})
if sys.argv[1] == "n0":
    open("let-go").close()
"""


def answers(port, path):
    """The answer, or None if nothing listens."""
    try:
        return ask(port, path)
    except OSError:
        return None


def when(port, phase):
    """Wait until the agent is in this phase; returns the status."""

    def found():
        answer = answers(port, "/status")
        return answer and answer.json["phase"] == phase and answer.json

    return eventually(found, f"the phase {phase}")


def probes(port):
    live, ready = ask(port, "/livez"), ask(port, "/readyz")
    return live.status, ready.status, ready.text


def let_go(folder):
    """Release the held worker; returns once it continues."""
    with open(Path(folder) / "let-go", "w"):
        pass


@pytest.mark.torch
def test_endpoint_follows_a_job_from_join_to_drain(elastic, job, read_fifo):
    os.mkfifo(elastic.cwd / "let-go")
    fifo, read = read_fifo
    script = elastic.script("hold.py", HOLD.format(fifo=fifo))
    p0, p1 = free_port(), free_port()
    flags = ("--nnodes=2", "--max-restarts=1")
    n0 = job.agent("n0", *flags, f"--health-port={p0}", script=script)
    status = when(p0, "joining")
    assert (status["round"], status["group_rank"], status["members"], status["workers"]) == (0, -1, [], [])
    live, ready, text = probes(p0)
    assert (live, ready, text.split(":")[0].strip()) == (200, 503, "joining")

    n1 = job.agent("n1", *flags, script=script, TORCHELASTIC_HEALTH_CHECK_PORT=str(p1))
    read(2, 90)
    status = when(p0, "running")
    (worker,) = when(p1, "running")["workers"]
    assert probes(p0)[:2] == probes(p1)[:2] == (200, 200)
    assert {member["node"] for member in status["members"]} == {"n0", "n1"}
    assert [(worker["state"], worker["memory_bytes"] > 1 << 20) for worker in status["workers"]] == [("running", True)]

    kill(worker["pid"])
    when(p0, "stopping")
    live, ready, text = probes(p0)
    assert (live, ready, text.startswith("stopping: ")) == (200, 503, True)
    eventually(lambda: f"rank {worker['global_rank']}" in ask(p0, "/readyz").text, "the reason")
    let_go(elastic.cwd)

    read(2, 60)
    status = when(p0, "running")
    assert probes(p0)[:2] == (200, 200)
    first, second = status["rounds"]
    assert (first["number"], first["cause"], second["number"], second["cause"]) == (1, "failure", 2, "")
    assert f"rank {worker['global_rank']}" in first["ended_because"]
    (recovery,) = status["recoveries"]
    assert (recovery["round"], recovery["cause"], status["restarts"]) == (2, "failure", {"failure": 1})
    assert recovery["total"] == pytest.approx(sum(recovery[part] for part in ("detect", "stop", "rendezvous", "start")))
    failure = when(p1, "running")["last_failure"]
    assert (failure["pid"], failure["signal"]) == (worker["pid"], "SIGKILL")
    assert 'elastic_restarts_total{cause="failure"} 1.0' in ask(p0, "/metrics").text

    n0.signal(signal.SIGTERM)
    when(p0, "draining")
    live, ready, text = probes(p0)
    assert (live, ready, text.startswith("draining")) == (200, 503, True)
    let_go(elastic.cwd)
    n0.code()
    assert answers(p0, "/livez") is None
    status = when(p1, "joining")
    assert status["rounds"][-1]["cause"] == "membership"
    n1.signal(signal.SIGTERM)
    n1.code()


def test_livez_fails_while_the_watchdog_is_lost(elastic, read_fifo):
    """A file replaces the pipe, so workers cannot set timers."""
    fifo, read = read_fifo
    hold = f"import os; os.write(os.open({fifo!r}, os.O_WRONLY), b'ready\\n'); open('let-go').close()"
    os.mkfifo(elastic.cwd / "let-go")
    port, pipe = free_port(), elastic.cwd / "timers"
    flags = ("--watchdog=file", f"--watchdog-conf=path={pipe}", f"--health-port={port}")
    process = elastic.start("run", *flags, elastic.script("hold.py", hold))
    read(1)
    assert probes(port)[0] == 200
    pipe.unlink()
    pipe.write_text("")
    eventually(lambda: ask(port, "/livez").status == 503, "red")
    assert ask(port, "/livez").text.startswith("the workers' watchdog has failed: ")
    assert probes(port)[1] == 200  # the workers keep running
    pipe.unlink()
    eventually(lambda: ask(port, "/livez").status == 200, "green again")
    let_go(elastic.cwd)
    assert elastic.finish(process).code == 0
