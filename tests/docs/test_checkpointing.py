"""The scripts in docs/guides/checkpointing.md continue after a restart, and with another number of workers."""

from __future__ import annotations

import re
import signal

import pytest
from blocks import block_of

PAGE = "docs/guides/checkpointing.md"
STEP = "optimizer.zero_grad()\n"
SLOW = "print('step', step, flush=True); time.sleep(0.1); "
FAILS = 'os._exit(9) if (step, rank, os.environ["TORCHELASTIC_RESTART_COUNT"]) == (25, 1, "0") else None; '
EXITS = "\nos._exit(0)\n"  # see the page's limits
THREADS = """
print([open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")], flush=True)
"""
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("words", ["DistributedDataParallel(", "fully_shard("])
def test_script_resumes_after_a_failure_and_after_a_stop(words, shell):
    """The first run saves once, restarts after a failure, and is stopped, so that it saves again. The second run has
    another number of workers."""
    script = block_of(PAGE, words).replace("STEPS, GLOBAL_BATCH = 60", "STEPS, GLOBAL_BATCH = 90")
    command, train, ddp = block_of(PAGE, "elastic run"), shell.folder / "train.py", words.startswith("Distributed")
    saves_once = script.replace("(step + 1) % 10 == 0", "step + 1 == 20")
    assert saves_once != script
    train.write_text("import os, time\n" + saves_once.replace(STEP, SLOW + FAILS + STEP) + EXITS)
    agent = shell.start(f"exec {command}")
    agent.says("step 26")
    agent.process.terminate()
    agent.ended(128 + signal.SIGTERM)
    for rank in (0, 1):
        assert f"rank {rank} of 2 continues after step 0\n" in agent.said
        assert f"rank {rank} of 2 continues after step 20\n" in agent.said
    train.write_text("import os\n" + script + (THREADS if ddp else EXITS))
    said = shell.run(command.replace("--nproc-per-node=2", "--nproc-per-node=3"))
    steps = re.findall(r"of 3 continues after step (\d+)\n", said)
    assert len(steps) == 3
    assert int(steps[0]) >= 27
    assert len(set(steps)) == 1
    assert "saved step 90" in said
    if ddp:
        assert "python" in said
        assert "gloo" not in said, "a thread of gloo could abort its exit"
        is_as_without_restarts(shell, command.replace("--nproc-per-node=2", "--nproc-per-node=1"))


def is_as_without_restarts(shell, command):
    """Check that the trained model equals that of a run without failures and with a constant number of workers."""
    torch = pytest.importorskip("torch")
    checkpoint = shell.folder / "checkpoint.pt"
    trained = torch.load(checkpoint, weights_only=True)["model"]
    checkpoint.unlink()
    shell.run(command)
    for name, value in torch.load(checkpoint, weights_only=True)["model"].items():
        torch.testing.assert_close(trained[name], value, rtol=1e-3, atol=1e-4)
