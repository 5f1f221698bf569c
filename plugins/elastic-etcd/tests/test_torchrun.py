"""The backend under stock torchrun."""

import pytest
from blocks import block_of
from elastic_etcd import EtcdRendezvousBackend
from elastic_testing import installed_backend

pytestmark = pytest.mark.torch

LONG = 110

# The first round is recognized by its port, not by the restart count, which stock torchrun keeps per node.
# Exits without finalizing Python: a gloo thread that is still releasing the last tensor would wait for the
# interpreter, which ends such threads; in C++ that is an abort.
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

import datetime
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
ranks = torch.tensor([int(rank) + 1])
dist.all_reduce(ranks)
dist.destroy_process_group()
pathlib.Path("seen-" + rank).write_text(os.environ["WORLD_SIZE"] + " " + port + " " + str(ranks.item()))
os._exit(0)
"""


def test_two_stock_torchrun_nodes_recover_and_reduce(etcd, prefix, shell, tmp_path):
    """The guide's command, with this server, one worker per node, and a shorter last call."""
    (tmp_path / "train.py").write_text(WORKER)
    command = block_of("docs/guides/etcd.md", "torchrun --nnodes").partition("\n")[2]
    assert command.startswith("torchrun ")
    command = command.replace("etcd0:2379,etcd1:2379,etcd2:2379", etcd.endpoint).replace("-node 8", "-node 1")
    conf = f"prefix={prefix.decode()},last_call_timeout=0.5"
    environ = {"RES_OPTIONS": "timeout:1 attempts:1", "OMP_NUM_THREADS": "1"}
    nodes = [shell.start(command, PET_RDZV_CONF=conf, PET_MAX_RESTARTS="1", **environ) for _ in range(2)]
    assert [node.process.wait(LONG) for node in nodes] == [0, 0], [node.said for node in nodes]
    seen = [(tmp_path / f"seen-{rank}").read_text().split() for rank in (0, 1)]
    assert seen[0] == seen[1]
    assert (seen[0][0], seen[0][2]) == ("2", "3")


def test_elastic_run_accepts_the_name_etcd_v3(etcd):
    backend = installed_backend("etcd-v3", etcd.endpoint, "job")
    assert isinstance(backend, EtcdRendezvousBackend)
    backend.close()
