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
def cluster(tmp_path):
    try:
        install()
    except NoSlurm as error:
        if "CI" in os.environ:
            raise
        pytest.skip(str(error))
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("a cluster needs name spaces")
    cluster = SlurmCluster(tmp_path, 1)
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
