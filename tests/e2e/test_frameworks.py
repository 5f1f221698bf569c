"""Third-party programs: training with frameworks that restart, and launchers that call torch.distributed's launcher."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from elastic_testing import eventually

pytestmark = pytest.mark.nightly

TRAININGS = Path(__file__).parent / "frameworks"
CALLBACKS = Path(__file__).parents[2] / "examples" / "stop"
SOME, ALL, BETWEEN = 12, 30, 5

WORKER = """
import os, sys
import torch, torch.distributed
torch.distributed.init_process_group("gloo")
ones = torch.ones(1)
torch.distributed.all_reduce(ones)
if torch.distributed.get_rank() == 1 and not os.path.exists("failed") and "--fail" in sys.argv:
    open("failed", "w").close()
    os._exit(3)
report = f"{torch.distributed.get_rank()} of {ones.item():g}, restarts {os.environ['TORCHELASTIC_RESTART_COUNT']}"
open(f"report-{torch.distributed.get_rank()}", "w").write(report)
open("launcher", "w").write(open(f"/proc/{os.getppid()}/cmdline").read())
torch.distributed.destroy_process_group()  # else gloo's threads may abort the interpreter while it ends
"""
NOTEBOOK = """
from accelerate import notebook_launcher

def train(argument):
    import runpy, sys
    sys.argv = ["worker.py", argument]
    runpy.run_path("worker.py", run_name="__main__")

notebook_launcher(train, ("--fail",), num_processes=2, max_restarts=1)
"""


def needs(framework):
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: tox run -e frameworks")


class Training:
    """A training with a framework, two workers, and the callbacks of examples/stop. Each step is recorded."""

    def __init__(self, framework, elastic):
        needs(framework)
        self._elastic = elastic
        self._steps = elastic.cwd / "steps"
        self._script = str(TRAININGS / f"with_{framework}.py")

    def start(self):
        """Start an agent, and wait until its workers have made some steps."""
        before = len(self.steps())
        own = {"STEPS": str(self._steps), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CALLBACKS)}
        run = self._elastic.start("run", "--nproc-per-node=2", "--max-restarts=1", self._script, **own)
        eventually(lambda: any(rank == 1 and step >= SOME for rank, _, step in self.steps()[before:]), timeout=120)
        return run

    def steps(self):
        """Rank, process id and number of each step, in order."""
        lines = self._steps.read_text().splitlines() if self._steps.exists() else []
        return [tuple(map(int, line.split())) for line in lines if line.count(" ") == 2]


FRAMEWORKS = ["lightning", "accelerate", "transformers"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_training_stops_after_the_same_step_and_resumes_there(framework, elastic):
    training = Training(framework, elastic)
    run = training.start()
    run.send_signal(signal.SIGTERM)
    ended = elastic.finish(run, timeout=180)
    assert ended.code == 128 + signal.SIGTERM
    assert "workers have not saved" not in ended.err
    last = {rank: step for rank, _, step in training.steps()}
    assert last[0] == last[1] < ALL - 1
    before = len(training.steps())
    ended = elastic.finish(training.start(), timeout=180)
    assert ended.code == 0, ended.err
    assert training.steps()[before][2] == last[0] + 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_training_resumes_from_its_checkpoint(framework, elastic):
    training = Training(framework, elastic)
    run, recorded_steps = training.start(), training.steps
    victim = next(pid for rank, pid, _ in recorded_steps() if rank == 1)
    os.kill(victim, signal.SIGKILL)
    ended = elastic.finish(run, timeout=180)
    assert ended.code == 0, ended.err
    assert ended.out.count(f"trained {ALL}") == 2
    second = next(pid for rank, pid, _ in reversed(recorded_steps()) if rank == 1)
    assert second != victim
    first_again = next(step for _, pid, step in recorded_steps() if pid == second)
    assert BETWEEN <= first_again <= max(step for _, pid, step in recorded_steps() if pid == victim)
    assert max(step for *_, step in recorded_steps()) == ALL - 1


def outcome(cwd):
    return {path.name: path.read_text() for path in cwd.glob("report-*")}


def test_accelerate_launch_restarts_workers(elastic):
    needs("accelerate")
    elastic.script("worker.py", WORKER)
    options = ("--multi_gpu", "--num_machines=1", "--num_processes=2", "--mixed_precision=no", "--dynamo_backend=no")
    ended = under_ours(elastic, "accelerate", "launch", *options, "--max_restarts=1", "worker.py", "--fail")
    assert ended.code == 0, ended.err
    assert outcome(elastic.cwd) == {"report-0": "0 of 2, restarts 1", "report-1": "1 of 2, restarts 1"}


def test_notebook_launcher_restarts_workers(elastic):
    needs("accelerate")
    elastic.script("worker.py", WORKER)
    program = elastic.script("notebook.py", "import torch\ntorch.cuda.device_count = lambda: 2\n" + NOTEBOOK)
    ended = under_ours(elastic, program)
    assert ended.code == 0, ended.err
    assert outcome(elastic.cwd) == {"report-0": "0 of 2, restarts 1", "report-1": "1 of 2, restarts 1"}


def test_fabric_run_starts_workers(elastic):
    needs("lightning")
    elastic.script("worker.py", WORKER)
    ended = under_ours(elastic, "fabric", "run", "--accelerator=cpu", "--devices=2", "--strategy=ddp", "worker.py")
    assert ended.code == 0, ended.err
    assert outcome(elastic.cwd) == {"report-0": "0 of 2, restarts 0", "report-1": "1 of 2, restarts 0"}


def test_torchx_uses_elastic_torchrun_as_torchrun(elastic):
    needs("torchx")
    elastic.script("worker.py", WORKER)
    folder = elastic.cwd / "bin"
    folder.mkdir()
    beside = Path(sys.executable).parent
    (folder / "torchrun").symlink_to(beside / "elastic-torchrun")
    path = f"{folder}:{beside}:{os.environ['PATH']}"
    words = ("run", "-s", "local_cwd", "dist.ddp", "-j", "1x2", "--script", "worker.py")
    process = elastic.program(str(beside / "torchx"), *words, PATH=path)
    ended = elastic.finish(process, timeout=120)
    assert ended.code == 0, ended.err
    assert str(folder / "torchrun") in (elastic.cwd / "launcher").read_text()
    assert outcome(elastic.cwd) == {"report-0": "0 of 2, restarts 0", "report-1": "1 of 2, restarts 0"}


def under_ours(elastic, program, *words):
    """Run with elastic-core's classes in place of torch's. A console script is taken from this environment."""
    found = program if program.endswith(".py") else shutil.which(program, path=Path(sys.executable).parent)
    return elastic.finish(
        elastic.program(sys.executable, "-m", "elastic_core.compat.torch", found, *words), timeout=180
    )
