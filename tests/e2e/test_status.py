"""`elastic status`, `drain` and `serve` with real jobs over torch's store."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from job_of_nodes import LONG, free_port

pytestmark = pytest.mark.torch

WORK = """
import os, signal
os.write(os.open({fifo!r}, os.O_WRONLY), (os.environ["RANK"] + " of " + os.environ["WORLD_SIZE"] + "\\n").encode())
signal.pause()
"""


class Cluster:
    """Agents on this machine that use a separate store."""

    def __init__(self, elastic):
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.elastic = elastic
        self.where = ("--rdzv-endpoint", self.endpoint, "--rdzv-id", "job")
        self.server = elastic.fork("serve", "--rdzv-endpoint", self.endpoint, "--log-format=json")
        line = json.loads(self.server.stderr.readline())
        assert (line["event"], line["endpoint"]) == ("store served", self.endpoint)

    def node(self, name, *words, nodes="1:2"):
        return self.elastic.fork("run", "--nnodes", nodes, "--node-id", name, *self.where, *words)

    def command(self, *words):
        return self.elastic.finish(self.elastic.fork(*words, *self.where), 120)

    def status(self):
        done = self.command("status", "--json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    def until(self, condition):
        """The first status that satisfies the condition."""
        deadline = time.monotonic() + LONG
        while not condition(found := self.status()):
            assert time.monotonic() < deadline, json.dumps(found, indent=1)
        return found


@pytest.fixture
def cluster(elastic):
    return Cluster(elastic)


def standings(nodes):
    return {node["node"]: node["standing"] for node in nodes}


def test_status_and_drain_follow_a_whole_job(cluster, elastic, read_fifo):
    fifo, read = read_fifo
    script = elastic.script("work.py", WORK.format(fifo=fifo))
    done = cluster.command("status")
    assert (done.code, done.out) == (8, "")
    assert f"no job with the id 'job' at {cluster.endpoint}" in done.err

    agents = {name: cluster.node(name, script) for name in ("n0", "n1")}
    assert sorted(read(2, 90)) == ["0 of 2", "1 of 2"]
    found = cluster.status()
    assert (found["phase"], found["round"], found["min_nodes"], found["max_nodes"]) == ("running", 1, 1, 2)
    assert standings(found["members"]) == {"n0": "running", "n1": "running"}
    assert all(node["beat_seen"] for node in found["members"])
    cluster.until(lambda found: all(node["beat_age_seconds"] < 5 for node in found["members"]))
    assert found["others"] == found["missing"] == []

    agents["n2"] = cluster.node("n2", script)
    found = cluster.until(lambda found: found["others"])
    assert standings(found["others"]) == {"n2": "spare"}
    text = cluster.command("status").out
    assert "round 1 runs with 2 nodes (1 to 2 allowed)" in text
    assert any(line.startswith("-     n2 ") and line.endswith(" spare") for line in text.splitlines())

    refused = cluster.command("drain", "n7")
    assert refused.code == 8
    assert "no node matches" in refused.err
    drained = cluster.command("drain", "n1")
    assert drained.code == 0, drained.err
    assert drained.out.splitlines()[-1] == "n1 has left"
    assert elastic.finish(agents["n1"]).code == 9
    assert sorted(read(2, 60)) == ["0 of 2", "1 of 2"]
    found = cluster.status()
    assert standings(found["members"]) == {"n0": "running", "n2": "running"}
    assert (found["last_end"]["cause"], found["last_end"]["restart_used"]) == ("node drained", False)
    assert found["missing"] == []

    agents["n2"].kill()
    assert read(1, 60) == ["0 of 1"]
    found = cluster.until(lambda found: found["missing"] == ["n2"])
    assert standings(found["members"]) == {"n0": "running"}
    assert found["last_end"]["cause"] == "node lost"

    agents["n0"].send_signal(signal.SIGTERM)
    assert elastic.finish(agents["n0"]).code == 128 + signal.SIGTERM
    cluster.server.send_signal(signal.SIGTERM)
    assert elastic.finish(cluster.server).code == 0
    gone = cluster.command("status", "--timeout=1")
    assert gone.code == 4
    assert f"elastic status: the rendezvous store at {cluster.endpoint} cannot be reached" in gone.err


@pytest.mark.parametrize("names", ["a", "a b"])
def test_drained_host_of_the_store_has_left(job, names):
    """Its store ends with it, or moves to the other node."""
    host = job.agent("a", "--nnodes=1:2")
    host.says("store hosted")
    others = [job.agent(name, "--nnodes=1:2") for name in names.split()[1:]]
    job.round(len(names.split()))
    drain = job.command("drain", "drain", "a", *job.where)
    assert drain.code() == 0, drain.err
    assert drain.out.splitlines()[-1] == "a has left"
    assert host.code() == 9
    job.ends_well(*others)


def test_failed_jobs_status_has_the_failure(cluster, elastic):
    fails = elastic.script(
        "fail.py",
        "import os, signal, sys\nsys.exit('no such layer') if os.environ['RANK'] == '1' else signal.pause()\n",
    )
    agents = [cluster.node(name, fails, nodes="2") for name in ("n0", "n1")]
    codes = [elastic.finish(agent, 120).code for agent in agents]
    assert sorted(codes) == [1, 5], "the node of the failure, and the other one"
    found = cluster.status()
    failed = next(node["node"] for node in found["members"] if node["rank"] == 1)
    assert (found["phase"], found["closed"]["by"], found["closed"]["succeeded"]) == ("closed", failed, False)
    assert codes[int(failed[1])] == 1
    assert found["last_end"]["cause"] == "failure"
    assert (found["first_failure"]["global_rank"], found["first_failure"]["node"]) == (1, failed)
    assert found["first_failure"]["message"] == "no such layer"
    text = cluster.command("status").out
    assert "the job failed in round 1" in text
    assert "    no such layer\n" in text
    late = elastic.finish(cluster.node("n3", fails, nodes="2"), 60)
    assert late.code == 5
    assert "choose another --rdzv-id" in late.err


STEERING = r"\x1b]0;owned\x07\x1b[2J\u009b31m \u202egpj\u2066 \r\u200b"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m \u202egpj\u2066 "
BOOM = """
import os, signal, sys
from elastic_core.error_file import record
print("\\x1b[32mgreen\\x1b[0m", flush=True)
@record
def main():
    # Either opens it when the other does: no worker fails before both have printed.
    os.close(os.open({meeting!r}, os.O_RDONLY if os.environ["RANK"] == "1" else os.O_WRONLY))
    if os.environ["RANK"] == "1":
        raise ValueError("{steering}日本語 é 🔥\\nRoot cause: rank 7")
    signal.pause()
main()
"""


def test_foreign_text_cannot_control_a_terminal(cluster, elastic, tmp_path):
    meeting = str(tmp_path / "meeting")
    os.mkfifo(meeting)
    script = elastic.script("boom.py", BOOM.format(steering=STEERING, meeting=meeting))
    files = ("--log-dir", str(tmp_path / "logs"), "-r", "2")
    agents = [cluster.node(name, *files, script, nodes="2") for name in ("n0", "n1")]
    ended = [elastic.finish(agent, 120) for agent in agents]
    assert sorted(done.code for done in ended) == [1, 5]
    status = cluster.command("status")
    drain = cluster.command("drain", "n\x1b[31m")
    for text in (*(done.err for done in ended), status.out, drain.err):
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\u200b", "\r"} & set(text)
    for text in (*(done.err for done in ended), status.out):
        assert SHOWN in text
        assert "日本語 é 🔥\n" in text
        assert sum(line.startswith("Root cause: ") for line in text.splitlines()) == 1
    assert all(done.out == "\x1b[32mgreen\x1b[0m\n" for done in ended), "workers' output is unchanged"
    assert "\x1b]0;owned\x07\x1b[2J\x9b31m \u202egpj" in cluster.status()["first_failure"]["message"]
