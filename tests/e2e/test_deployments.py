"""Jobs as Slurm and Kubernetes start them: no flag gives the number of nodes, the node's rank or the job's id."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from job_of_nodes import eventually, free_port

MANIFEST = Path(__file__).parents[2] / "examples" / "kubernetes" / "job.yaml"
HELD = """
import os, pathlib, time
pipe = os.open({fifo!r}, os.O_WRONLY)
os.write(pipe, "{{RANK}} of {{WORLD_SIZE}} in {{TORCHELASTIC_RUN_ID}}\\n".format(**os.environ).encode())
while not pathlib.Path("end").exists():
    time.sleep(0.02)
"""
# Replaces itself by another program.
BECOME = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"

pytestmark = pytest.mark.torch


def listens(port):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def test_tasks_of_a_slurm_step_form_one_job(elastic, read_fifo):
    fifo, read = read_fifo
    script = elastic.script("held.py", HELD.format(fifo=fifo))
    step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}
    flags = ("run", f"--rdzv-endpoint=127.0.0.1:{free_port()}", script)
    agents = [elastic.start_to_files(f"n{node}", *flags, **step, SLURM_NODEID=str(node)) for node in (1, 0)]
    assert sorted(read(2, 60)) == ["0 of 2 in slurm-77.3", "1 of 2 in slurm-77.3"]
    (elastic.cwd / "end").touch()
    assert [agent.wait(60) for agent in agents] == [0, 0]


class Pods:
    """The manifest's container, with files, ports and workers that fit this machine."""

    def __init__(self, elastic):
        yaml = pytest.importorskip("yaml")
        *_, job = yaml.safe_load_all(MANIFEST.read_text())
        (self._container,) = job["spec"]["template"]["spec"]["containers"]
        self._elastic = elastic
        self._become = elastic.script("become.py", BECOME)
        self._secrets = elastic.cwd / "secret"
        self._secrets.mkdir()
        for name in ("rdzv", "token"):
            (self._secrets / name).touch(0o400)
            (self._secrets / name).write_text(f"a {name} of 32 characters or more than that")
        self.port = free_port()

    def main(self, index):
        (self._elastic.cwd / f"tmp{index}").mkdir()
        return self._start(f"pod{index}", index, [*self._container["command"], *self._container["args"]])

    def pre_stop(self, index):
        command = self._container["lifecycle"]["preStop"]["exec"]["command"]
        return self._start(f"hook{index}", index, command)

    def _start(self, name, index, command):
        here = {"/tmp/": f"{self._elastic.cwd}/tmp{index}/", "=gpu": "=1", "8080": str(free_port())}
        here["/etc/elastic/secret"] = str(self._secrets)
        for theirs, ours in here.items():
            command = [word.replace(theirs, ours) for word in command]
        return self._elastic.start_to_files(
            name,
            self._become,
            *command,
            PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin",
            ELASTIC_NNODES="1:2",
            ELASTIC_RDZV_ENDPOINT=f"127.0.0.1:{self.port}",
            ELASTIC_RDZV_ID="uid",
            ELASTIC_RDZV_SECRET_FILE=str(self._secrets / "rdzv"),
            ELASTIC_NODE_ID=f"trainer-{index}-abcde",
            JOB_COMPLETION_INDEX=str(index),
        )


def test_evicted_pod_is_drained_and_the_job_continues(elastic, read_fifo):
    fifo, read = read_fifo
    elastic.script("train.py", HELD.format(fifo=fifo))
    pods = Pods(elastic)
    first = pods.main(0)
    eventually(lambda: listens(pods.port), "the store")
    second = pods.main(1)
    workers = []
    while {"0 of 2 in uid", "1 of 2 in uid"} - set(workers):  # the first may have started alone
        workers += read(1, 60)
    assert pods.pre_stop(1).wait(60) == 0
    assert second.wait(60) == 143
    assert read(1, 60) == ["0 of 1 in uid"]
    (elastic.cwd / "end").touch()
    assert first.wait(60) == 0
