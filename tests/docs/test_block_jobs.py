"""Runs the code blocks in the docs that start or inspect a job."""

from __future__ import annotations

import json
import re
import shutil
import socket
import time

import pytest
from block_kinds import BLOCKS, need, of_kind, parameters, without_pip
from blocks import LIMIT_S, free_port

TRAIN = """
import os, sys
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: {sys.argv[1:]}", flush=True)
"""
WAIT = "import pathlib, time\nwhile not pathlib.Path('done').exists(): time.sleep(0.05)\n"


@pytest.fixture
def shell(shell, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    return shell


@pytest.fixture
def etcd():
    """Return a function that starts this test's own server, at most once."""
    servers = []

    def endpoint():
        servers.append(pytest.importorskip("elastic_etcd.server").EtcdServer())
        servers[-1].start()
        return servers[-1].get_endpoint()

    yield endpoint
    for server in servers:
        server.stop()


def here(text, etcd=None):
    """Return the commands, with the addresses of other machines replaced by free ports on this one."""
    text = re.sub(r"(node0)?:29400\b", f"127.0.0.1:{free_port()}", without_pip(text))
    text = text.replace("--master-addr node0", "--master-addr 127.0.0.1").replace("29500", str(free_port()))
    text = text.replace("node0,node1,node2", f"127.0.0.1:{free_port(with_next=True)}")  # for etcd's peers
    text = text.replace("node7", "127.0.0.1").replace("8080", str(free_port()))
    return re.sub(r"etcd0:2379(,etcd\d:2379)*", lambda _: etcd(), text)


@pytest.mark.parametrize("block", parameters("elastic run"))
def test_job_runs(block, shell, etcd):
    need(block.text)
    several = "--nnodes" in block.text
    command = here(block.text, etcd)
    quick = {"ELASTIC_RDZV_CONF": "last_call_timeout=0.5"} if ":4" in block.text else {}  # two of up to four
    if "--node-rank" in command:
        other = shell.start(command.replace("--node-rank 0", "--node-rank 1"))
        said = shell.run(command) + other.ended()
    else:
        said = shell.run(command, times=2 if several else 1, **quick)
    workers = int((re.findall(r"--nproc-per-node[= ](\d+)", command) or ["1"])[0]) * (2 if several else 1)
    assert sorted(re.findall(r"rank (\d+) of", said), key=int) == [str(rank) for rank in range(workers)]
    assert said.count(f"of {workers}: ['--epochs', '10']") == (workers if "--epochs" in command else 0)


@pytest.mark.parametrize("block", parameters("torchrun --nproc-per-node"))
def test_command_works_with_torchrun_and_elastic(block, shell):
    theirs, ours = (shell.run(line) for line in block.text.splitlines())
    line = r"rank \d of 8: \['--epochs', '10'\]"
    assert sorted(re.findall(line, theirs)) == sorted(re.findall(line, ours))
    assert len(re.findall(line, ours)) == 8


@pytest.mark.parametrize("block", parameters("of train.py"))
def test_script_with_timers_runs(block, shell):
    of_page = [other for other in BLOCKS if other.page == block.page and "--watchdog=file" in other.text]
    need(of_page[0].text)
    (shell.folder / "train.py").write_text(f"batch = 'a step'\nbatches = [batch]\nstep = print\n{block.text}")
    assert "a step" in shell.run(here(of_page[0].text))


@pytest.mark.parametrize("block", parameters("elastic doctor"))
def test_doctor_command_works(block, shell):
    need(block.text)
    said = shell.run(here(block.text))
    assert "this run needs" in said


(SERVE,) = of_kind("elastic serve")
JOB = next(block for block in of_kind("elastic run") if block.page == SERVE.page and "node0:29400" in block.text)


@pytest.mark.nightly
@pytest.mark.torch
def test_status_and_drain_commands_work(shell):
    """Runs one page's blocks in another order: serve, run, status, drain, stop. Other pages have the same commands."""
    page = [block for block in BLOCKS if block.page == SERVE.page]
    words = ("status", "drain", "stop")
    asked = [next(b for b in page if b.text.startswith(f"elastic {word}")) for word in words]
    assert {b.text for word in words for b in of_kind(f"elastic {word}")} == {b.text for b in asked}
    serve, run, status, drain, stop = here("\0".join(without_pip(b.text) for b in (SERVE, JOB, *asked))).split("\0")
    (shell.folder / "train.py").write_text(WAIT)
    server = shell.start(serve)
    server.says("store served")
    quick = {"ELASTIC_RDZV_CONF": "last_call_timeout=0.5"}
    agents = [shell.start(run, ELASTIC_NODE_ID=f"node{number}", **quick) for number in (1, 2, 3)]
    for agent in agents:
        agent.says("workers started")
    assert "node3" in shell.run(status)
    shell.run(drain)
    agents[-1].ended(9)
    shown = next(block.text for block in page if block.text.startswith("job job7"))
    assert_like(shown, status_of_two(shell, status), r" {2,}|node\d|[\d.]+|at \S+\)")
    shell.run(stop)
    for agent in agents[:-1]:
        agent.ended(9)


def status_of_two(shell, status):
    """Return the output of `elastic status` once the two remaining nodes run their next round."""
    deadline = time.monotonic() + LIMIT_S
    while "runs with 2 nodes" not in (said := shell.run(status)) or said.count(" running\n") < 2:
        assert time.monotonic() < deadline, said
    return said


@pytest.mark.parametrize("block", parameters("explain"))
def test_explain_shows_slurms_values(block, shell):
    """In this test, `srun` starts only one of the tasks."""
    step = "SLURM_JOB_ID=123456 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=4 SLURM_STEP_NUM_TASKS=4 SLURM_JOB_NUM_NODES=4"
    srun = f'srun() {{ shift 2; {step} SLURM_NNODES=4 SLURM_NODEID=2 SLURM_PROCID=2 "$@"; }}\n'
    said = shell.run(srun + block.text)
    assert re.findall(r"^(\w+) .*SLURM_\w+", said, re.M) == ["nnodes", "node_rank", "rdzv_id"]


FAILS_ONCE = """
import os, sys
where = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
print(where, flush=True)
if where == "rank 1 of 2" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("no samples")
"""


def test_log_files_are_at_the_documented_paths(shell):
    """Runs all blocks of the page in order, with a script that fails once, and checks the documented file tree."""
    page = [block for block in BLOCKS if block.page == "docs/guides/logs.md"]
    tree = next(block.text for block in page if "logs/latest -> " in block.text)
    (shell.folder / "train.py").write_text(FAILS_ONCE)
    to_files, look, prefixed, as_json = of_kind("logs")
    assert "[default0]:rank 0 of 2" in shell.run(to_files.text)
    for line in tree.splitlines():
        path, _, target = line.partition(" -> ")
        assert (shell.folder / path).exists()
        assert not target or (shell.folder / path).readlink().as_posix() == target.replace("round-1", "round-2")
    assert re.search(r"rank-1.err.ValueError: no samples", said := shell.run(look.text)), said
    assert "rank 0 of 2" in said
    (shell.folder / "train.py").write_text(TRAIN)
    assert f"[{socket.gethostname()} 1] rank 1 of 2" in shell.run(prefixed.text)
    assert "\nround formed\nworkers started\nagent finished\n" in shell.run(as_json.text)


def assert_like(shown, said, differs):
    """Check that the output contains each line that the page shows, except for the parts that match `differs`."""
    for line in shown.splitlines():
        fixed = [part for part in re.sub(differs, "\0", line).split("\0") if part.strip()]
        assert any(has_in_order(found, fixed) for found in said.splitlines()), (line, said)


def has_in_order(line, parts):
    for part in parts:
        _, found, line = line.partition(part)
        if not found:
            return False
    return True


HANGS = """
import itertools, os, threading, time


def next_batch():
    threading.Event().wait()


if os.environ["RANK"] == "1":
    next_batch()
for step in itertools.count():
    print(step, flush=True)
    time.sleep(0.1)
"""


def test_hang_report_matches_the_page(shell):
    """Runs the first command with a shorter timeout, and compares the output except for numbers and paths."""
    block, shown = [block for block in BLOCKS if block.page == "docs/guides/debugging-a-hang.md"][:2]
    (shell.folder / "train.py").write_text(HANGS)
    quick = {"ELASTIC_HANG_WARMUP": "0", "ELASTIC_RDZV_ID": "job7"}
    said = shell.run(block.text.replace("600", "6"), code=1, **quick)
    assert_like(shown.text, said, r"0x\w+|\d+|on node|File .*, line")
    assert "in next_batch" in json.loads((shell.folder / "result.json").read_text())["first_failure"]["stack"]


@pytest.mark.parametrize("block", parameters("token"))
def test_request_with_the_token_is_answered(block, shell):
    need(block.text)
    if "openssl" in block.text and not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    *made, run, ask = here(block.text).replace("DNS:127", "IP:127").splitlines()
    (shell.folder / "train.py").write_text(WAIT)
    shell.run(of_kind("token")[0].text.splitlines()[0])
    for command in made:
        shell.run(command)
    job = shell.start(run)
    job.says("workers started")
    assert '"run_id"' in shell.run(ask)
    (shell.folder / "done").touch()
    job.ended()
