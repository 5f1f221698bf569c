"""The door into stock torchrun."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

# The first round is known by its port, not by the restart count: stock torchrun counts on each node for itself.
WORKER = """
import contextlib, os, pathlib, sys, time
rank, port = os.environ["RANK"], os.environ["MASTER_PORT"]
own = pathlib.Path("port-" + port + "-" + rank)
own.write_text(port)
with contextlib.suppress(FileExistsError):
    os.link(own, "first")
if pathlib.Path("first").read_text() == port:
    if rank == "1":
        sys.exit(3)
    while True:
        time.sleep(0.1)
pathlib.Path("seen-" + rank).write_text(os.environ["WORLD_SIZE"] + " " + port)
"""


@pytest.fixture
def torchrun(etcd, prefix, tmp_path):
    """Starts nodes; all are gone at the end."""
    (tmp_path / "worker.py").write_text(WORKER)
    started = []

    def start(*flags):
        place = ("--rdzv-backend=etcd-v3", f"--rdzv-endpoint={etcd.endpoint}", f"--rdzv-conf=prefix={prefix.decode()}")
        command = [sys.executable, "-m", "torch.distributed.run", *place, *flags, "worker.py"]
        environment = {**os.environ, "RES_OPTIONS": "timeout:1 attempts:1"}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=10)


def test_two_nodes_of_stock_torchrun_meet_and_get_over_a_failure(torchrun, tmp_path):
    nodes = [torchrun("--nnodes=2", "--rdzv-id=job", "--max-restarts=1") for _ in range(2)]
    said = [node.communicate(timeout=100)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    seen = [(tmp_path / f"seen-{rank}").read_text().split() for rank in (0, 1)]
    assert seen[0] == seen[1]
    assert seen[0][0] == "2"


def test_what_cannot_be_is_told(torchrun):
    node = torchrun("--nnodes=2", "--rdzv-id=job", "--rdzv-conf=lease_ttl=soon")
    _, said = node.communicate(timeout=60)
    assert node.returncode
    assert "lease_ttl" in said
