"""The `slurm` source reports when the job reaches its time limit. The `slurm-node` source reports when the node is
drained."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from elastic_core.plugin import ConfigurationError, Notice, Problem, SystemClock
from elastic_notices.decoding import make_notice
from elastic_notices.polling import interval, poll

if TYPE_CHECKING:
    from elastic_core.plugin import Context, Duration, Notices, Pause

_JOB_EVERY: Duration = 60.0
_NODE_EVERY: Duration = 30.0
_LIMIT: Duration = 10.0
_LEAVE = ("draining", "drained", "failing", "fail")
_FLAGS = "*~#!%$@^-"  # sinfo appends one of them to a state


def watch_job(context: Context, pause: Pause) -> Notices:
    """Yield a notice of the time at which the job ends. Administrators may change that time."""
    job = _variable("slurm", "SLURM_JOB_ID")
    end = os.environ.get("SLURM_JOB_END_TIME")
    if end is None:
        _require("slurm", "squeue")
    # %A, because `--jobs` also selects the other tasks of an array job and the other parts of a heterogeneous one
    command = ["squeue", "--noheader", "--jobs", job, "--format", "%A %e"]
    clock = SystemClock()

    def ask() -> Notice | None:
        nonlocal end
        try:
            output, end = _run(command), None
        except OSError:
            if end is None:
                raise
            output = f"{job} {end}"  # until squeue has answered; many containers do not have squeue
        return decode_end(output, job, clock.timestamp())

    return poll("slurm", ask, context, pause, max(interval(context, _JOB_EVERY), _JOB_EVERY))


def watch_node(context: Context, pause: Pause) -> Notices:
    """Yield a notice when Slurm drains this node."""
    node = _variable("slurm-node", "SLURMD_NODENAME")
    _require("slurm-node", "sinfo")
    # --all, because without it, sinfo does not list nodes of hidden partitions
    command = ["sinfo", "--noheader", "--all", "--nodes", node, "--format", "%T"]
    every = max(interval(context, _NODE_EVERY), _NODE_EVERY)
    return poll("slurm-node", lambda: decode_state(_run(command)), context, pause, every)


def decode_end(output: str, job: str, now: float) -> Notice | None:
    """Return the notice for this job's end, or None if the job has no end. Each line contains a job's id and its end
    (seconds since the epoch, or `N/A`)."""
    for line in output.splitlines():
        listed, _, end = line.strip().partition(" ")
        if listed != job:
            continue
        if end == "N/A":
            return None
        if not end.isdecimal():
            raise ValueError(f"expected seconds since the epoch, found {end[:50]!r}")
        return make_notice("the Slurm job reaches its time limit", float(end), now)
    raise ValueError(f"squeue does not list job {job}")


def decode_state(output: str) -> Notice | None:
    """Return the notice for this node's state, or None. The output has one line for each of the node's partitions."""
    states = {line.strip().rstrip(_FLAGS).lower() for line in output.splitlines()}
    if not states:
        raise ValueError("sinfo does not list this node")
    found = next((state for state in _LEAVE if state in states), None)
    return Notice(f"Slurm reports this node as {found}") if found else None


def _run(command: list[str]) -> str:
    """Return the output of a Slurm command. Raises OSError if the command fails."""
    environ = {**os.environ, "SLURM_TIME_FORMAT": "%s"}  # by default, times are local and have no offset
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{command[0]} did not finish within {_LIMIT:g} s") from None
    if done.returncode != 0:
        raise OSError(f"{command[0]} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()


def _variable(source: str, name: str) -> str:
    if value := os.environ.get(name):
        return value
    raise ConfigurationError(Problem("--notices", f"the source {source!r} requires a Slurm job, but {name} is not set"))


def _require(source: str, command: str) -> None:
    if shutil.which(command) is None:
        message = f"the source {source!r} requires {command}, which is not on the PATH"
        raise ConfigurationError(Problem("--notices", message))
