"""The scripts in docs/guides/checkpointing.md continue after a restart, and with another number of workers."""

from __future__ import annotations

import re
import signal

import pytest
from blocks import block_of

PAGE = "docs/guides/checkpointing.md"
STEP = "optimizer.zero_grad()\n"
FAILS = 'os._exit(9) if (step, rank, os.environ["TORCHELASTIC_RESTART_COUNT"]) == (25, 1, "0") else None; '
EXITS = "\nos._exit(0)\n"  # see the page's limits
THREADS = """
print([open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")], flush=True)
"""
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("words", ["DistributedDataParallel(", "fully_shard("])
def test_script_continues_from_checkpoint(words, shell):
    script, command = block_of(PAGE, words), block_of(PAGE, "elastic run")
    train = shell.folder / "train.py"
    train.write_text("import os\n" + script.replace(STEP, FAILS + STEP) + EXITS)
    said = shell.run(command)
    for rank in (0, 1):
        assert f"rank {rank} of 2 continues after step 0\n" in said
        assert f"rank {rank} of 2 continues after step 20\n" in said
    assert "saved step 60" in said
    train.write_text("import os\n" + script.replace("STEPS, GLOBAL_BATCH = 60", "STEPS, GLOBAL_BATCH = 90") + EXITS)
    said = shell.run(command.replace("--nproc-per-node=2", "--nproc-per-node=3"))
    assert said.count("of 3 continues after step 60\n") == 3
    assert "saved step 90" in said
    if words == "DistributedDataParallel(":
        is_as_without_restarts(shell, command.replace("--nproc-per-node=2", "--nproc-per-node=1"))


@pytest.mark.parametrize("words", ["DistributedDataParallel(", "fully_shard("])
def test_script_saves_when_it_is_stopped_and_resumes_there(words, shell):
    script, command = block_of(PAGE, words), block_of(PAGE, "elastic run")
    slow = "print('step', step, flush=True); time.sleep(0.1); " + STEP
    only_when_asked = script.replace("(step + 1) % 10 == 0", "step + 1 == STEPS")
    (shell.folder / "train.py").write_text("import os, time\n" + only_when_asked.replace(STEP, slow) + EXITS)
    agent = shell.start(f"exec {command}")
    agent.says("step 3")
    agent.process.terminate()
    agent.ended(128 + signal.SIGTERM)
    said = shell.run(command)
    steps = {rank: int(re.search(rf"rank {rank} of 2 continues after step (\d+)", said)[1]) for rank in (0, 1)}
    assert steps[0] == steps[1] >= 4


def test_ddp_script_leaves_no_gloo_thread_that_could_abort_its_exit(shell):
    (shell.folder / "train.py").write_text(block_of(PAGE, "DistributedDataParallel(") + THREADS)
    said = shell.run(block_of(PAGE, "elastic run"))
    assert "python" in said
    assert "gloo" not in said


def is_as_without_restarts(shell, command):
    """Check that the trained model equals that of a run without failures and with a constant number of workers."""
    torch = pytest.importorskip("torch")
    checkpoint = shell.folder / "checkpoint.pt"
    trained = torch.load(checkpoint, weights_only=True)["model"]
    checkpoint.unlink()
    shell.run(command)
    for name, value in torch.load(checkpoint, weights_only=True)["model"].items():
        torch.testing.assert_close(trained[name], value, rtol=1e-3, atol=1e-4)
