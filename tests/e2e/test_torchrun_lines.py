"""Command lines for torchrun, each also run with `elastic run`: same exit code, ranks and variables."""

from __future__ import annotations

import json
import random
import re
import socket
import sys

import pytest
from beside_torchrun import Elastic as OurReader
from beside_torchrun import RefusedLine, combinations, compared
from beside_torchrun import Torchrun as TheirReader
from elastic_testing import eventually

from elastic_core.errors import ConfigurationError
from elastic_core.support.sockets import PortReservation

WORKER = """import json, os, sys
json.dump(dict(os.environ), open(f"{os.environ['OUT']}/{os.environ['RANK']}", "w")), sys.exit(int(os.environ["CODE"]))
"""

SAME = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    *("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
)
SET = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE")
NOT_HERE = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
"""Variables of torchrun's workers that elastic-core does not set; the page says why."""

# {port} is a free port, {tmp} a folder, {name} this machine's name.
ALONE = [
    "worker.py",
    "--nnodes=1:1 --nproc-per-node=2 worker.py --nproc-per-node=7",
    "--standalone --nproc-per-node=2 --nnodes=1:4 worker.py",
    "--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{port} --nnodes=1:4 --rdzv-id=7 "
    "--rdzv-conf=last_call_timeout=1,join_timeout=60 worker.py",
    "--rdzv-backend=c10d --rdzv-endpoint={tmp}/store --rdzv-conf=store_type=File worker.py",
    "--rdzv-backend=static --rdzv-endpoint=127.0.0.1:{port} --rdzv-conf=timeout=60,rank=0 worker.py",
    "--nnodes=1 --node-rank=0 --master-addr=localhost --master-port={port} --nproc-per-node=2 worker.py",
    "--log-dir={tmp}/logs -r 3 -t 0:1 --nproc-per-node=2 --local-ranks-filter=0 worker.py",
    "-m worker",
    "--no-python {python} worker.py",
    "--run-path worker.py",
]
MORE = [
    "--nproc_per_node 2 --max_restarts 3 --role trainer worker.py",
    "--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:0 --nproc-per-node=2 --rdzv-id=job worker.py",
    "--rdzv-backend=c10d --rdzv-endpoint=localhost:{port} --node-rank=0 --master-addr=127.0.0.1 worker.py",
    "--monitor-interval=5 --start-method=fork --event-log-handler=console --local-addr=127.0.0.1 worker.py",
    "--signals-to-handle=SIGTERM,SIGINT --shutdown-timeout=5 worker.py",
    "--rdzv-backend=c10d --rdzv-endpoint=[::1]:{port} --nproc-per-node=2 worker.py",
    "--master-addr={name} --master-port={port} worker.py",
    "--nnodes=1 worker.py",
    "--nproc-per-node=cpu worker.py",
    "--standalone worker.py",
    "--standalone --role= worker.py",
    "--standalone --rdzv-conf=join_timeout=900 worker.py",
    "--standalone --rdzv-backend=c10d --rdzv-endpoint=localhost:29400 --rdzv-id=7 worker.py",
    "--nnodes=1 --rdzv-conf=read_timeout=300,is_host=true,store_type=tcp worker.py",
    "--rdzv-conf=timeout=900,rank=0 worker.py",
    "--rdzv-backend=c10d worker.py",
    "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 worker.py",
    "--rdzv-backend=c10d --rdzv-endpoint=localhost:{port} worker.py",
    "--rdzv-backend=c10d --rdzv-endpoint=localhost:{port} --rdzv-conf=is_host=1 --rdzv-conf store_type=TCP worker.py",
    "--rdzv-backend=static worker.py",
    "--master-addr=127.0.0.1 --master-port={port} worker.py",
    "--redirects=0:3,1:1 --tee=3 --nproc-per-node=2 --log-dir={tmp}/logs worker.py",
    "--duplicate-stdout-filters=a,b --duplicate-stderr-filters=c --log-dir={tmp}/logs worker.py",
    "--module worker",
    "--run-path --no-python worker.py",
    "--rdzv-backend=c10d --rdzv-endpoint=[::1]:0 worker.py",
    "--rdzv-backend=static --rdzv-endpoint=[::1]:{port} worker.py",
    "--master-addr=[::1] --master-port={port} --nproc-per-node=2 worker.py",
    "--master-addr=::1 --master-port={port} worker.py",
    "--rdzv-backend=c10d --rdzv-endpoint={name}:{port} --nproc-per-node=2 worker.py",
]
"""The nightly tier runs these with both launchers."""
VARIABLES = [
    {"PET_NPROC_PER_NODE": "2", "PET_ROLE": "trainer", "PET_MAX_RESTARTS": "2"},
    {"PET_STANDALONE": "1"},
    {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "localhost:0", "PET_RDZV_ID": "7"},
    {"PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "{port}"},
    {"OMP_NUM_THREADS": "3", "PET_NPROC_PER_NODE": "2"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
]


# Run on each node in turn, with the same {port}.
TOGETHER = [
    "--nnodes=2 --node-rank={rank} --master-addr=127.0.0.1 --master-port={port} worker.py",
    "--nnodes=2 --node-rank={rank} --rdzv-backend=static --rdzv-endpoint=127.0.0.1:{port} --nproc-per-node=2 worker.py",
    "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{port} --rdzv-id=job worker.py",
    "--nnodes=2:2 --rdzv-backend=c10d --rdzv-endpoint=localhost:{port} --rdzv-id=job "
    "--rdzv-conf=is_host={host} worker.py",
    "--nnodes=1:2 --rdzv-backend=c10d --rdzv-endpoint=localhost:{port} --rdzv-id=job --nproc-per-node=2 worker.py",
    "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=[::1]:{port} --rdzv-id=job worker.py",
    "--nnodes=2 --node-rank={rank} --master-addr=[::1] --master-port={port} worker.py",
    "--nnodes=2 --node-rank={rank} --master-addr=::1 --master-port={port} worker.py",
    "--nnodes=2 --node-rank={rank} --rdzv-backend=static --rdzv-endpoint=[::1]:{port} worker.py",
    "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint={name}:{port} --rdzv-id=job worker.py",
    "--nnodes=2 --node-rank={rank} --master-addr={name} --master-port={port} worker.py",
]
# No store answers there.
NOWHERE = [
    "--rdzv-backend=c10d --rdzv-endpoint=nowhere.invalid:{port} --rdzv-conf=join_timeout=5,read_timeout=5 worker.py",
    "--rdzv-backend=c10d --rdzv-endpoint=localhost:{port} --rdzv-conf=is_host=no,join_timeout=5,read_timeout=5 "
    "worker.py",
]


def has(host):
    """Whether a server on this machine can bind this address or name."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as sock:
            sock.bind(where)
    except OSError:
        return False
    return True


class Launcher:
    """Runs lines in a separate folder and returns whether they succeeded and the workers' variables."""

    def __init__(self, tmp_path, elastic, name):
        self.tmp_path = tmp_path
        self.elastic = elastic
        self.name = name

    def outcome(self, line, code=0, nodes=1, **environ):
        """Whether all nodes succeeded, and the variables of each worker by rank. Skips a line with an address or name
        that this machine does not have."""
        if "::1" in line and not has("::1"):
            pytest.skip("this machine has no [::1]")
        if "{name}" in line and not has(socket.gethostname()):
            pytest.skip("the name of this machine leads nowhere")
        folder = self.tmp_path / self.name
        folder.mkdir()
        held = PortReservation()
        started = []
        for rank in range(nodes):
            host = str(rank == 0).lower()
            given = {
                "name": socket.gethostname(),
                "port": held.port,
                "tmp": folder,
                "python": sys.executable,
                "rank": rank,
                "host": host,
            }
            words = line.format(**given).split()
            more = {name: value.format(**given) for name, value in environ.items()}
            more |= {"OUT": str(folder), "CODE": str(code), "PYTHONPATH": str(self.tmp_path)}
            started.append(self.start(f"{self.name}{rank}", words, more))
        codes = [process.wait(60) for process in started]
        held.release()
        eventually(lambda: not self.elastic.living())  # the resource tracker of multiprocessing ends after its parent
        workers = {int(path.name): json.loads(path.read_text()) for path in folder.glob("[0-9]*") if path.is_file()}
        return not any(codes), {rank: self._of(workers[rank]) for rank in sorted(workers)}

    @staticmethod
    def _of(environ):
        names = {name for name in environ if not name.startswith("ELASTIC")} - NOT_HERE  # set by elastic-core only
        found = {**{name: environ.get(name) for name in SAME}, **{name: name in environ for name in SET}}
        return {**found, "names": sorted(names)}

    def start(self, name, words, environ):
        return self.elastic.start_to_files(name, "run", *words, **environ)

    def said(self):
        return "".join(path.read_text() for path in sorted(self.tmp_path.glob(f"{self.name}*.err")))


class Torchrun(Launcher):
    def start(self, name, words, environ):
        # multiprocessing imports the main file again in the processes that it spawns for --run-path.
        path = self.elastic.script(
            "stock.py", "import torch.distributed.run\nif __name__ == '__main__':\n    torch.distributed.run.main()"
        )
        return self.elastic.start_to_files(name, path, *words, **environ)


@pytest.fixture
def launchers(tmp_path, elastic):
    elastic.script("worker.py", WORKER)
    return Launcher(tmp_path, elastic, "ours"), Torchrun(tmp_path, elastic, "theirs")


@pytest.mark.parametrize("line", ALONE)
def test_torchrun_line_runs(line, launchers):
    ours, _ = launchers
    succeeded, workers = ours.outcome(line)
    assert succeeded, ours.said()
    assert workers
    assert all(found[name] for found in workers.values() for name in SET)


@pytest.mark.nightly
@pytest.mark.parametrize("line", TOGETHER)
def test_nodes_behave_as_with_torchrun(line, launchers):
    ours, theirs = launchers
    found = ours.outcome(line, nodes=2)
    assert found[0], ours.said()
    assert found == theirs.outcome(line, nodes=2), f"{ours.said()}\n{theirs.said()}"


@pytest.mark.nightly
@pytest.mark.parametrize("line", [*ALONE, *MORE])
def test_line_behaves_as_with_torchrun(line, launchers):
    ours, theirs = launchers
    assert ours.outcome(line) == theirs.outcome(line), f"{ours.said()}\n{theirs.said()}"


@pytest.mark.nightly
@pytest.mark.parametrize("environ", VARIABLES, ids=" ".join)
def test_variables_apply_as_with_torchrun(environ, launchers):
    ours, theirs = launchers
    assert ours.outcome("worker.py", **environ) == theirs.outcome("worker.py", **environ), ours.said()


@pytest.mark.nightly
def test_failure_is_reported_as_with_torchrun(launchers):
    ours, theirs = launchers
    line = "--nproc-per-node=2 worker.py"
    found = ours.outcome(line, code=3)
    assert (found[0], sorted(found[1])) == (False, [0, 1])
    assert found == theirs.outcome(line, code=3)


@pytest.mark.nightly
@pytest.mark.parametrize("line", NOWHERE)
def test_unreachable_endpoint_fails_as_with_torchrun(line, launchers):
    ours, theirs = launchers
    assert ours.outcome(line) == theirs.outcome(line) == (False, {}), f"{ours.said()}\n{theirs.said()}"


SEED = 2940


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """Some of the generated lines that can run on one machine: `(line, number of nodes)`."""
    folder = tmp_path_factory.mktemp("reading")
    torchrun, elastic = TheirReader(folder), OurReader(folder)
    able = {1: [], 2: []}
    for words in combinations(SEED):
        line = " ".join(words)
        # Unreachable stores; ports that may be in use; timeouts that a slow machine exceeds.
        if re.search(r"nowhere|\{tmp\}|etcd|is_host=[0fFnN]|29500|_timeout=(\+9|1_0)| = ", line):
            continue
        known = {"port": SEED, "tmp": folder, "name": socket.gethostname(), "rank": 0}
        try:
            theirs, ours = (reader.read(line.format(**known).split()) for reader in (torchrun, elastic))
        except (RefusedLine, ConfigurationError):
            continue
        pairs, nodes = compared(theirs, ours), theirs.config.max_nodes
        if nodes == 2 and re.search("is_host|conf=rank", line, re.IGNORECASE):
            continue  # not every node can have the same value
        has_separate_places = bool(theirs.store) or nodes == 1 or "--node-rank={rank}" in words
        where = pairs["where"][1]
        is_ours = where is None or where[1] == SEED
        if has_separate_places and is_ours and all(mine == other for mine, other in pairs.values()):
            able[nodes].append(line)
    chance = random.Random(SEED)
    return [(line, nodes) for nodes in able for line in chance.sample(able[nodes], 8)]


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(16))
def test_generated_line_behaves_as_with_torchrun(number, sample, launchers):
    line, nodes = sample[number]
    ours, theirs = launchers
    found = ours.outcome(line, nodes=nodes)
    assert found[0], f"{line}\n{ours.said()}"
    assert found == theirs.outcome(line, nodes=nodes), f"{line}\n{ours.said()}\n{theirs.said()}"
