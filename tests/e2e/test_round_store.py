"""Two processes that meet with `next_rendezvous` and create torch's process group from its result."""

from __future__ import annotations

import json
import subprocess

import pytest

from elastic_core.support.sockets import PortReservation

pytestmark = pytest.mark.torch

LONG = 100.0

# Exits without finalizing Python: a gloo thread that still releases the last tensor would wait for the interpreter,
# which ends such threads; in C++ that is an abort.
NODE = """
import json, os, sys
import torch
import torch.distributed as dist
from elastic_core.rendezvous import RendezvousParameters, get_rendezvous_handler

given = json.loads(sys.argv[1])
handler = get_rendezvous_handler(RendezvousParameters(run_id="job", min_nodes=2, max_nodes=2, **given))
for number in (1, 2):
    info = handler.next_rendezvous()
    assert not info.store.check(["round"]), "a key of the last round"
    dist.init_process_group("gloo", store=info.store, rank=info.rank, world_size=info.world_size)
    tensor = torch.tensor([1.0 + info.rank])
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, group=dist.new_group([0, 1]))
    numbers = [None, None]
    dist.all_gather_object(numbers, info.store.add("round", number))
    dist.monitored_barrier()
    dist.destroy_process_group()
    print(tensor.item(), sorted(numbers), flush=True)
handler.shutdown()
os._exit(0)
"""


@pytest.fixture(params=["c10d", "static", "file", "etcd"])
def nodes(request, tmp_path):
    """The parameters of each of the two processes."""
    kind = request.param
    if kind == "etcd":
        endpoint = request.getfixturevalue("etcd_endpoint")
        yield [{"backend": "etcd", "endpoint": endpoint, "prefix": tmp_path.name}] * 2
    elif kind == "file":
        yield [{"backend": "file", "endpoint": str(tmp_path / "store")}] * 2
    else:
        held = PortReservation()
        given = {"backend": kind, "endpoint": f"127.0.0.1:{held.port}"}
        yield [given | {"rank": rank} for rank in (0, 1)] if kind == "static" else [given] * 2
        held.release()


def test_process_groups_form_on_each_rounds_store(nodes, warm):
    started = [warm.start(("-c", NODE, json.dumps(given)), stdout=subprocess.PIPE) for given in nodes]
    try:
        codes = [process.wait(LONG) for process in started]
        said = [process.stdout.read() for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait(LONG)
            process.stdout.close()
    expected = "6.0 [1, 2]\n6.0 [2, 4]\n"
    assert list(zip(codes, said, strict=True)) == [(0, expected)] * 2
