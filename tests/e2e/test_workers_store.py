"""The workers' store: it outlives rank 0's worker, and nodes that use different names for rank 0's machine find it."""

from __future__ import annotations

import pytest
from job_of_nodes import free_port

pytestmark = pytest.mark.torch

LONG = 180
BACKENDS = ["local", "c10d", "static", "etcd", "etcd-legacy"]
# Rank 1 uses the store after rank 0 has exited.
LATE = """
import os, time
import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
if dist.get_rank() == 0:
    store.set("pid", str(os.getpid()))
    dist.barrier()
    os._exit(0)
dist.barrier()
first = f"/proc/{int(store.get('pid'))}"
while os.path.exists(first):
    time.sleep(0.02)
store.set("late", "stored")
print(store.get("late").decode(), os.environ["TORCHELASTIC_USE_AGENT_STORE"], flush=True)
os._exit(0)
"""
MEETS = """
import os, sys
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
print(os.environ["MASTER_ADDR"], dist.get_rank(), flush=True)
dist.barrier()
os._exit(0)
"""


@pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=() if name in ("local", "etcd") else pytest.mark.nightly) for name in BACKENDS],
)
def test_workers_store_outlives_rank_0(elastic, request, tmp_path, backend):
    flags = [f"--rdzv-backend={backend}", "--rdzv-id=job"]
    if backend.startswith("etcd"):
        prefix = "etcd_prefix" if backend == "etcd-legacy" else "prefix"
        flags += [
            f"--rdzv-endpoint={request.getfixturevalue('etcd_endpoint')}",
            f"--rdzv-conf={prefix}={tmp_path.name}",
        ]
    ran = elastic.run(*flags, "--nproc-per-node=2", "--max-restarts=0", elastic.script("late.py", LATE))
    assert (ran.code, ran.out.split()) == (0, ["stored", "True"]), ran.err


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["local", "etcd"])
def test_unshared_store_is_hosted_by_rank_0(elastic, request, tmp_path, backend):
    flags = [f"--rdzv-backend={backend}", "--rdzv-id=job"]
    if backend == "etcd":
        flags += [f"--rdzv-endpoint={request.getfixturevalue('etcd_endpoint')}", f"--rdzv-conf=prefix={tmp_path.name}"]
    ran = elastic.run(*flags, elastic.script("meets.py", MEETS), TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert (ran.code, ran.out.split()[-1:]) == (0, ["0"]), ran.err


# Finds the process that the agent started to host the store.
HOST = """
import os
from pathlib import Path

def hosts():
    tasks = Path(f"/proc/{os.getppid()}/task").glob("*/children")
    children = " ".join(task.read_text() for task in tasks).split()
    return [int(pid) for pid in children if b"tcp_store" in Path(f"/proc/{pid}/cmdline").read_bytes()]
"""
RESTARTS = """
import os, signal, sys
from host import hosts
import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
(host,) = hosts()
print(host, store.check(["round"]), store.add("round", 1), flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if "kill" in sys.argv:
        os.kill(host, signal.SIGKILL)
    sys.exit(1)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("how", "port"),
    [
        ("kill", ()),
        ("keep", ("--master-port={port}",)),
        pytest.param("kill", ("--master-port={port}",), marks=pytest.mark.nightly),
        pytest.param("keep", (), marks=pytest.mark.nightly),
    ],
)
def test_each_round_has_an_empty_store_in_one_process(elastic, how, port):
    elastic.script("host.py", HOST)
    flags = [flag.format(port=free_port()) for flag in port]
    ran = elastic.run("--max-restarts=1", *flags, elastic.script("restarts.py", RESTARTS), how)
    first, second = (line.split() for line in ran.out.splitlines())
    assert (ran.code, first[1:], second[1:]) == (0, ["False", "1"], ["False", "1"]), ran.err
    assert (first[0] == second[0]) == (how == "keep")


def test_job_without_torch_starts_no_store_process(elastic):
    """The worker's parent is the agent. Another program that loads torch at the same time may start the process."""
    elastic.script("host.py", HOST)
    code = "from host import hosts; print(hosts(), 'libtorch' in open(f'/proc/{os.getppid()}/maps').read())"
    ran = elastic.run(elastic.script("plain.py", f"import os\n{code}"))
    assert ran.code == 0, ran.err
    assert ran.out.split()[-1] == "False"


MASTER, OTHER = "machine1", "machine2"
NAMES = [
    ("static", "localhost", MASTER),  # as Kubeflow's v1 operator does
    ("c10d", "localhost", MASTER),
    ("static", "0.0.0.0", MASTER),
    ("c10d", "0.0.0.0", MASTER),
    ("static", "127.0.0.1", MASTER),
    ("static", "10.97.0.1", "10.98.0.1"),  # two networks
    ("static", MASTER, "machine1.cluster.local"),
    ("c10d", MASTER, "machine1.cluster.local"),
    ("c10d", "machine1.cluster.local", "10.97.0.1"),
]


@pytest.fixture
def pair(machines):
    """Two machines like pods: with a default route and names for each other. A second network connects them."""
    made = machines(2)
    hosts, resolver = made[0].names()
    for number, machine in enumerate(made, 1):
        machine.name(f"{hosts}10.97.0.1 machine1.cluster.local\n", resolver)
        machine.run("ip", "addr", "add", f"10.98.0.{number}/24", "dev", "eth0")
        machine.run("ip", "route", "add", "default", "dev", "eth0")
    return made


@pytest.mark.parametrize(
    ("backend", "there", "here"),
    [pytest.param(*case, marks=() if case == NAMES[0] else pytest.mark.nightly) for case in NAMES],
)
def test_nodes_with_different_master_names_meet(elastic, pair, backend, there, here):
    port, script = free_port(), elastic.script("meets.py", MEETS)
    agents = []
    for rank, (machine, name) in enumerate(zip(pair, (there, here), strict=True)):
        elastic.through = machine.through
        flags = ["--nnodes=2", f"--rdzv-backend={backend}", "--rdzv-id=job", f"--node-rank={rank}"]
        where = [f"--master-addr={name}", f"--master-port={port}"] if backend == "static" else []
        flags += where or [f"--rdzv-endpoint={name}:{port}"]
        agents.append(elastic.start_to_files(f"n{rank}", "run", *flags, script, GLOO_SOCKET_IFNAME="eth0"))
    codes = [agent.wait(LONG) for agent in agents]
    printed = [(elastic.cwd / f"n{rank}.out").read_text().split() for rank in (0, 1)]
    assert codes == [0, 0], [(elastic.cwd / f"n{rank}.err").read_text() for rank in (0, 1)]
    assert [rank for _, rank in printed] == ["0", "1"]
    if backend == "static":  # each node's own address, as with torchrun
        assert [address for address, _ in printed] == [{"0.0.0.0": "localhost"}.get(there, there), here]
