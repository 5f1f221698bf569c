"""A process group over EtcdStore: two processes, each with its own client."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

LONG = 100.0

# Exits without finalizing Python: a gloo thread that is still releasing the last tensor would wait for the
# interpreter, which ends such threads; in C++ that is an abort.
WORKER = """
import os
import sys
import torch
import torch.distributed as dist
from elastic_etcd.client.client import EtcdClient
from elastic_etcd.store import EtcdStore

endpoint, prefix, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
client = EtcdClient([endpoint], timeout=60)
dist.init_process_group("gloo", store=EtcdStore(client, prefix), rank=rank, world_size=2)
tensor = torch.tensor([1.0 + rank])
dist.all_reduce(tensor)
group = dist.new_group([0, 1])
dist.all_reduce(tensor, group=group)
dist.barrier()
print(tensor.item(), flush=True)
dist.destroy_process_group()
client.close()
os._exit(0)
"""


def test_process_group_over_etcd_reduces(etcd, prefix):
    command = [sys.executable, "-c", WORKER, etcd.endpoint, prefix.decode()]
    workers = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=LONG) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [(worker.returncode, out) for worker, (out, _) in zip(workers, outputs, strict=True)] == [
        (0, "6.0\n")
    ] * 2, outputs
