"""The batch script on a real Slurm: workers save at the time limit, on scancel and on preemption."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from elastic_testing import eventually
from slurm_cluster import NoSlurm, SlurmCluster, install

SCRIPTS = Path(__file__).parents[2] / "examples" / "slurm"
LONG = 180.0
TRAIN = """
import os, pathlib, signal, sys, time
rank, home = os.environ["RANK"], pathlib.Path.home()
saved, asked = home / f"saved-{rank}", []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
step = int(saved.read_text()) if saved.exists() else 0

def log_event(what):
    with open(home / "log", "a") as log:
        log.write(f"{what} {rank} {step} {os.getpid()} {os.environ['TORCHELASTIC_RUN_ID']}\\n")

log_event("begins")
while not (home / "finish").exists():
    time.sleep(0.05)
    step += 1
    if asked:
        time.sleep(1)
        saved.write_text(str(step))
        log_event("saves")
        sys.exit(0)
"""

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


class Job:
    """A batch script adapted to nodes without GPUs, and without reserving CPUs, which other tests need."""

    def __init__(self, cluster: SlurmCluster, nodes: int, script: str) -> None:
        self.cluster = cluster
        self.nodes = nodes
        text = re.sub(r"#SBATCH --(gpus|cpus)-per-.*\n", "", (SCRIPTS / script).read_text())
        text = text.replace("--nproc-per-node=gpu", "")
        (cluster.folder / "train.sbatch").write_text(text)
        (cluster.folder / "train.py").write_text(TRAIN)

    def start(self, *words):
        self.number = self.cluster.submit(f"--nodes={self.nodes}", *words, "train.sbatch")
        return self.logged("begins", self.nodes)

    def logged(self, what, count):
        """The lines of the log with this event: rank, step, process id, run id."""
        path = self.cluster.folder / "log"

        def found():
            lines = path.read_text().splitlines() if path.exists() else []
            return [line.split()[1:] for line in lines if line.startswith(f"{what} ")]

        eventually(lambda: len(found()) >= count, LONG, f"{count} workers that say {what}")
        return found()

    def ends(self, state):
        eventually(lambda: self.cluster.state(self.number).startswith(state), LONG, state)

    def finish(self):
        (self.cluster.folder / "finish").touch()
        self.ends("COMPLETED 0:0")

    def resumes(self):
        """Check that the job runs again and each rank continues from its saved step."""
        saved = {rank: step for rank, step, *_ in self.logged("saves", 2)}
        again = self.logged("begins", 4)[2:]
        assert {rank: step for rank, step, *_ in again} == saved
        assert all(run.endswith("-r1") for *_, run in again)


@pytest.fixture
def job(tmp_path, request):
    try:
        install()
    except NoSlurm as error:
        if "CI" in os.environ and request.node.get_closest_marker("nightly"):
            raise
        pytest.skip(str(error))
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("a cluster needs name spaces")
    nodes, script = getattr(request, "param", (2, "train.sbatch"))
    cluster = SlurmCluster(tmp_path, nodes)
    yield Job(cluster, nodes, script)
    cluster.close()


def test_scancel_lets_all_workers_save(job):
    """A canceled job is not requeued."""
    first = job.start()
    job.cluster.kill(first[1][2])
    again = job.logged("begins", 4)[2:]
    job.cluster.run("scancel", job.number)
    saved = job.logged("saves", 3)[1:]  # the other worker saved before the restart
    assert sorted(pid for *_, pid, _ in saved) == sorted(pid for *_, pid, _ in again)
    job.ends("CANCELLED")


@pytest.mark.nightly
def test_job_saves_at_time_limit_and_resumes(job):
    """Slurm checks the time limit twice a minute."""
    job.start("--time=3")
    job.resumes()
    job.finish()


@pytest.mark.nightly
def test_signal_to_the_steps_lets_all_workers_save(job):
    job.start()
    job.cluster.run("scancel", "--signal=TERM", job.number)
    job.logged("saves", 2)
    job.ends("FAILED 143:0")


@pytest.mark.nightly
def test_preempted_job_saves_and_resumes(job):
    job.start()
    other = job.cluster.submit("--partition=high", "--nodes=2", "--ntasks-per-node=2", "--wrap=sleep 5")
    job.resumes()
    assert job.cluster.state(other) == "COMPLETED 0:0"
    job.finish()


@pytest.mark.nightly
def test_job_is_requeued_after_slurmd_is_killed(job):
    job.start()
    job.cluster.kill_daemon("n2")
    job.ends("PENDING")


@pytest.mark.nightly
@pytest.mark.parametrize("job", [(4, "train-etcd.sbatch")], indirect=True)
def test_job_with_own_etcd_saves_on_scancel(job):
    first = job.start()
    job.cluster.kill(first[3][2])
    job.logged("begins", 8)
    job.cluster.run("scancel", job.number)
    assert len({rank for rank, *_ in job.logged("saves", 7)[3:]}) == 4  # three of them saved before the restart
    job.ends("CANCELLED")
