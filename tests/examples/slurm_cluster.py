"""A real Slurm on this machine: one slurmctld and one slurmd per node. Installs Debian's packages first if possible."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from elastic_testing import eventually

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "ip")
_PACKAGES = ("slurm-wlm", "munge", "iproute2")
_INSIDE = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c")
_LONG = 180.0  # seconds for any wait, and for apt

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(10.9.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdTimeout=10
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
MpiDefault=none
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=30
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""
NODE = "NodeName=n{number} NodeHostname={host} NodeAddr=10.9.0.{number} Port={port} CPUs=2"
PORT = 17000
# Separate namespaces: the nodes have names in them, no host port is used, and everything ends with the first process.
START = """\
set -e
ip link set lo up
for address in {addresses}; do ip address add $address dev lo; done
mount --bind {folder}/hosts /etc/hosts
munged --force --key-file={folder}/munge.key --socket={folder}/munge.socket --pid-file={folder}/munged.pid \
  --log-file={folder}/munged.log --seed-file={folder}/munge.seed
slurmctld -D > {folder}/slurmctld.log 2>&1 &
for node in {names}; do slurmd -D -N $node > {folder}/$node.log 2>&1 & echo $! > {folder}/$node.here; done
wait
"""


class NoSlurm(Exception):
    """Slurm is not available; the message is the reason."""


def install() -> None:
    """Raises NoSlurm."""
    folder = os.open("/usr", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # only one of several parallel test processes installs
        if all(map(shutil.which, _PROGRAMS)):
            return
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise NoSlurm("Slurm is not installed, and to install it takes root and apt-get")
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in ("apt-get update -qq", f"apt-get install -y -qq --no-install-recommends {' '.join(_PACKAGES)}"):
            done = subprocess.run(command.split(), env=environ, capture_output=True, text=True, timeout=2 * _LONG)
        if done.returncode:
            raise NoSlurm(f"{command} failed: {done.stderr[-500:]}")
    finally:
        os.close(folder)


class SlurmCluster:
    """Nodes n1, n2, and so on. Jobs run in `folder`, which is also their HOME."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.folder = folder
        self._own = Path(tempfile.mkdtemp(prefix="slurm-"))  # a socket's path must be short
        names = [f"n{number}" for number in range(1, nodes + 1)]
        host = os.uname().nodename.partition(".")[0]
        rows = [NODE.format(number=n, host=host, port=PORT + n) for n in range(1, nodes + 1)]
        config = CONFIG.format(host=host, folder=self._own, nodes="\n".join(rows))
        (self._own / "slurm.conf").write_text(config)
        addresses = [f"10.9.0.{number}" for number in range(1, nodes + 1)]
        hosts = [f"{address} {name}\n" for address, name in zip(addresses, names, strict=True)]
        (self._own / "hosts").write_text(f"127.0.0.1 localhost\n10.9.0.1 {host}\n{''.join(hosts)}")
        (self._own / "munge.key").write_bytes(os.urandom(1024))
        (self._own / "munge.key").chmod(0o600)
        (self._own / "state").mkdir()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environ = {**os.environ, "SLURM_CONF": f"{self._own}/slurm.conf", "PATH": path, "HOME": str(folder)}
        self._process = subprocess.Popen(
            [*_INSIDE, START.format(folder=self._own, names=" ".join(names), addresses=" ".join(addresses))],
            env=self._environ,
            stdin=subprocess.DEVNULL,
        )
        try:
            self._wait_until_idle(nodes)
        except BaseException:
            self.close()
            raise

    def _wait_until_idle(self, nodes: int) -> None:
        eventually(lambda: self.run("sinfo", "-h", "-o", "%t %D").strip() == f"idle {nodes}", _LONG, "idle nodes")

    def run(self, *command: str) -> str:
        """The output of a command that runs in the cluster; empty if it fails."""
        path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        if not (init := path.read_text().split()):
            return ""
        enter = ["nsenter", f"--target={init[0]}", "--mount", "--net", "--pid", f"--wd={self.folder}", *command]
        done = subprocess.run(enter, env=self._environ, capture_output=True, text=True, timeout=_LONG)
        return done.stdout if done.returncode == 0 else ""

    def submit(self, *words: str) -> str:
        """Submit a job. Returns its number."""
        number = self.run("sbatch", "--parsable", *words).strip()
        assert number, "the job was refused"
        return number

    def state(self, job: str) -> str:
        """PENDING, RUNNING and so on; followed by the exit code once the job has ended."""
        shown = dict(word.split("=", 1) for word in self.run("scontrol", "show", "job", job).split() if "=" in word)
        state = shown.get("JobState", "")
        return state if state in ("PENDING", "RUNNING", "COMPLETING") else f"{state} {shown.get('ExitCode')}"

    def kill(self, pid: str) -> None:
        """Kill a process of the cluster, by its pid in the cluster's namespace."""
        self.run("kill", "-KILL", pid)

    def kill_daemon(self, node: str) -> None:
        """Kill the slurmd of this node. Its child processes keep running."""
        self.kill((self._own / f"{node}.here").read_text().strip())

    def close(self) -> None:
        self._process.send_signal(signal.SIGKILL)  # the kernel then ends all processes in its namespace
        self._process.wait(_LONG)
        with contextlib.suppress(OSError):
            eventually(lambda: not shutil.rmtree(self._own, ignore_errors=True) and not self._own.exists(), _LONG)
