"""The batch scripts, and how the agents read them. `test_slurm_cluster.py` runs one on a real Slurm."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import block_of

from elastic_core.config import Sources, read
from elastic_core.config.settings import Settings

FOLDER = Path(__file__).parents[2] / "examples" / "slurm"
SCRIPTS = sorted(FOLDER.glob("*.sbatch"))
LIMIT_S = 60
ALLOCATION = {
    "SLURM_JOB_ID": "123456",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NNODES": "4",
    "SLURM_JOB_NODELIST": "gpu[07-10]",
    "SLURM_NODELIST": "gpu[07-10]",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
}
SCONTROL = """\
#!/bin/bash
case $1 in
  show) printf '%s\\n' gpu07 gpu08 gpu09 gpu10 ;;
  *) echo "$@" >> scontrol.txt ;;
esac
"""
SBATCH = """\
#!/bin/bash
umask 022
exec bash "$1"
"""
RECORDS = """\
#!/bin/bash
cp -p .elastic-* seen-secret
umask > umask.txt
printf '%s\\n' "$@" > srun.txt
exit ${SRUN_EXITS:-0}
"""
pytestmark = [pytest.mark.integration, pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)]


class Cluster:
    """A folder with stand-ins for sbatch, scontrol and srun, in which the page's command runs with either script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "elastic.toml").touch()

    def start(self, script, srun, **environ):
        for name, text in {"sbatch": SBATCH, "scontrol": SCONTROL, "srun": srun}.items():
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        path = f"{self.folder}:{os.environ['PATH']}"
        command = block_of("docs/guides/slurm.md", "sbatch").strip()
        shutil.copyfile(script, self.folder / script.name)
        assert command.endswith(" train.sbatch")
        return subprocess.Popen(
            ["bash", "-c", f"exec {command.replace('train.sbatch', script.name)}"],
            cwd=self.folder,
            env={"PATH": path, "HOME": str(self.folder), **ALLOCATION, **environ},
            stdout=subprocess.PIPE,
            text=True,
        )

    def recorded(self, name):
        path = self.folder / f"{name}.txt"
        return path.read_text().splitlines() if path.exists() else []

    def agents(self, script):
        """The settings of the agents that srun starts, one per node."""
        with self.start(script, RECORDS) as shell:
            assert shell.wait(LIMIT_S) == 0
        words = self.recorded("srun")
        flags = words[words.index("elastic") + 2 :]
        return [read(Sources(flags, self.step(node), self.folder), require_script=False) for node in range(4)]

    def step(self, node, **more):
        of_step = {"NUM_NODES": "4", "NUM_TASKS": "4", "NODELIST": "gpu[07-10]", "ID": "0"}
        mine = {f"SLURM_STEP_{name}": value for name, value in of_step.items()}
        return {**ALLOCATION, **mine, "SLURM_NODEID": str(node), "SLURM_PROCID": str(node), **more}


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def directives(script):
    return dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", script.read_text(), re.M))


def test_shellcheck_finds_nothing(script):
    subprocess.run(["bash", "-n", script], check=True, timeout=LIMIT_S)
    critic = shutil.which("shellcheck", path=Path(sys.executable).parent)
    if critic is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([critic, script], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == ""


def test_agents_read_one_job_and_separate_ranks(cluster, script):
    readings = cluster.agents(script)
    jobs = {(str(r.settings.nnodes), r.settings.rdzv_endpoint, r.settings.rdzv_id) for r in readings}
    assert len(jobs) == 1
    assert [reading.settings.node_rank for reading in readings] == [0, 1, 2, 3]
    assert readings[0].settings.nnodes.max == int(directives(script)["nodes"])
    assert readings[0].settings.rdzv_id == "slurm-123456.0"
    assert readings[0].origins["node_rank"] == "SLURM_NODEID"
    assert (readings[0].script, readings[0].script_args) == ("train.py", ())


def test_secret_is_private_and_deleted_at_the_end(cluster, script):
    path = cluster.folder / f".elastic-{ALLOCATION['SLURM_JOB_ID']}"
    secrets = set()
    for _ in range(2):
        assert {str(reading.settings.rdzv_secret_file) for reading in cluster.agents(script)} == {str(path)}
        seen = cluster.folder / "seen-secret"
        assert seen.stat().st_mode & 0o777 == 0o600
        secrets.add(base64.b64decode(seen.read_text()))
        assert not path.exists()
    assert [len(secret) for secret in secrets] == [32, 32]
    assert cluster.recorded("umask") == ["0022"]  # the job's own files get the user's umask


def test_agents_meet_at_the_first_three_nodes(cluster, script):
    settings = cluster.agents(script)[3].settings
    met = {"c10d": "gpu07:29856,gpu08:29856,gpu09:29856", "etcd": "gpu07:26912,gpu08:26912,gpu09:26912"}
    assert settings.rdzv_endpoint == met[settings.rdzv_backend]
    assert settings.rdzv_conf.get("serve") == {"c10d": None, "etcd": "true"}[settings.rdzv_backend]
    assert settings.rdzv_backend == ("etcd" if "etcd" in script.stem else "c10d")


def test_explain_names_slurms_variables(cluster, script):
    cluster.agents(script)
    words = cluster.recorded("srun")
    (cluster.folder / "train.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "elastic_core", "explain", "--json", *words[words.index("elastic") + 2 :]],
        cwd=cluster.folder,
        env={"PATH": os.environ["PATH"], **cluster.step(2, SLURM_RESTART_COUNT="1")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    shown = json.loads(done.stdout)["settings"]
    assert shown["node_rank"] == {"value": 2, "unit": "", "origin": "SLURM_NODEID"}
    assert shown["rdzv_id"]["value"] == "slurm-123456.0-r1"
    assert shown["nnodes"]["origin"] == ("--nnodes" if "etcd" in script.stem else "SLURM_STEP_NUM_NODES")


def test_stop_timeouts_fit_before_the_time_limit(cluster, script):
    settings: Settings = cluster.agents(script)[0].settings
    before = int(directives(script)["signal"].rpartition("@")[2])
    assert settings.shutdown_timeout + settings.kill_timeout < before
    assert directives(script)["signal"].startswith("B:USR1")


def test_srun_starts_one_agent_per_node_and_kills_none(cluster, script):
    cluster.agents(script)
    assert {"--ntasks=4", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=0"} <= set(cluster.recorded("srun"))
    assert directives(script)["ntasks-per-node"] == "1"
    assert ("no-kill" in directives(script)) == ("--no-kill" in cluster.recorded("srun"))


@pytest.mark.parametrize("code", [0, 1, 5])
def test_exit_code_is_that_of_the_agents(cluster, script, code):
    with cluster.start(script, RECORDS, SRUN_EXITS=str(code)) as shell:
        assert shell.wait(LIMIT_S) == code
    assert cluster.recorded("scontrol") == []
