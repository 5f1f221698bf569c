"""The sources of Slurm on a real Slurm."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from elastic_testing import eventually

sys.path.append(str(Path(__file__).parents[3] / "tests" / "examples"))  # `slurm_cluster`

from slurm_cluster import NoSlurm, SlurmCluster, install

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

LONG = 180.0
WATCH = """
import sys, time
from elastic_core.plugin import Context
from elastic_notices.plugin import elastic_add_options, elastic_notices

options = {option.name: option.default for option in elastic_add_options()} | {"notices": sys.argv[1]}
(watch,) = (record.factory for record in elastic_notices() if record.name == sys.argv[1])
for notice in watch(Context(options=options), lambda seconds: not time.sleep(1)):
    left = notice and notice.at and round(notice.at - time.time())
    print(notice and notice.reason, left, file=open(sys.argv[1], "a"), flush=True)
"""


@pytest.fixture
def cluster(tmp_path, request):
    try:
        install()
    except NoSlurm as error:
        if "CI" in os.environ:
            raise
        pytest.skip(str(error))
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("a cluster needs name spaces")
    cluster = SlurmCluster(tmp_path, getattr(request, "param", 1))
    yield cluster
    cluster.close()


def test_limit_and_drain_of_a_real_job(cluster, tmp_path):
    (tmp_path / "watch.py").write_text(WATCH)
    watches = f"for name in slurm slurm-node; do {sys.executable} watch.py $name & done\nwait"
    (tmp_path / "job").write_text(f"#!/bin/sh\nexport TZ=Asia/Tokyo\n{watches}\n")

    def noticed(name, count):
        path = tmp_path / name
        found = lambda: path.read_text().splitlines() if path.exists() else []  # noqa: E731
        eventually(lambda: len(found()) >= count, LONG, f"{count} notices of {name}")
        return found()[count - 1]

    job = cluster.submit("--time=30", "--output=log", "job")
    reason, _, left = noticed("slurm", 1).rpartition(" ")
    assert reason == "the Slurm job reaches its time limit"
    assert 1700 < int(left) <= 1800
    cluster.run("scontrol", "update", f"jobid={job}", "timelimit=60")
    assert 3500 < int(noticed("slurm", 2).rpartition(" ")[2]) <= 3600
    cluster.run("scontrol", "update", "nodename=n1", "state=drain", "reason=test")
    assert noticed("slurm-node", 1) == "Slurm reports this node as draining None"
    cluster.run("scontrol", "update", "nodename=n1", "state=resume")
    assert noticed("slurm-node", 2) == "None None"
    cluster.run("scancel", job)


TRAIN = """
import os, pathlib, random, time
import elastic_core

rank, home = os.environ["RANK"], pathlib.Path.home()
saved = home / f"saved-{rank}"
step = int(saved.read_text()) if saved.exists() else 0

def log_event(what):
    with open(home / "events", "a") as log:
        log.write(f"{what} {rank} {step}\\n")

log_event("begins")
while not elastic_core.should_stop(step):
    time.sleep(random.uniform(0.005, 0.03))
    step += 1
saved.write_text(str(step))
log_event("saves")
"""
BATCH = """#!/bin/bash
#SBATCH --requeue --open-mode=append --nodes=2 --ntasks-per-node=1 --time=2 --output=log
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
code=0
srun --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 \\
  elastic run --notices=slurm --shutdown-timeout=20 --kill-timeout=5 --rdzv-endpoint="$head:29400" \\
  --nproc-per-node=1 train.py || code=$?
if [ $code -eq 10 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
"""


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_job_saves_before_its_time_limit_and_resumes_there(cluster, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job").write_text(BATCH)

    def events(what, count):
        def found():
            lines = (tmp_path / "events").read_text().splitlines() if (tmp_path / "events").exists() else []
            return [line.split()[1:] for line in lines if line.startswith(what)]

        eventually(lambda: len(found()) >= count, 2 * LONG, f"{count} workers that say {what}")
        return found()

    job = cluster.submit("job")
    saved = events("saves", 2)
    assert sorted(rank for rank, _ in saved) == ["0", "1"]
    (step,) = {step for _, step in saved}
    assert [found for _, found in events("begins", 4)[2:]] == [step] * 2
    cluster.run("scancel", job)
