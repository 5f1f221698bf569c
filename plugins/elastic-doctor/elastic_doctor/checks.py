"""Health checks of this machine that need neither torch nor the network: Python, the kernel, the process limit, and
shared memory. `elastic doctor` runs them before a job, and a running job's health endpoint shows their results."""

from __future__ import annotations

import os
import platform
import resource
from typing import TYPE_CHECKING

from elastic_core.plugin import CheckLevel, CheckResult, usable_cpus

if TYPE_CHECKING:
    from elastic_core.plugin import Context

_TASKS_PER_WORKER = 128  # a worker with torch has dozens of threads, each of which counts toward the limit
_OTHER_TASKS = 256
_ENOUGH_SHARED = 256 << 20
_MIB = 1 << 20
_PIDFD_SINCE = (5, 3)


def python(context: Context) -> CheckResult:
    """Report the Python interpreter."""
    return CheckResult(CheckLevel.OK, python_version())


def kernel(context: Context) -> CheckResult:
    """Check the operating system and its kernel. Without pidfd, the agent needs one thread per worker."""
    return judged_kernel(platform.system(), platform.release(), usable_cpus())


def process_limit(context: Context) -> CheckResult:
    """Check the limit on processes. All of the user's threads count toward the limit, including those of other
    programs."""
    workers = context.settings.get("nproc_per_node", 1)
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = None if soft == resource.RLIM_INFINITY else soft
    return judged_processes(limit, workers if isinstance(workers, int) else usable_cpus())


def shared_memory(context: Context) -> CheckResult:
    """Check /dev/shm, which NCCL and torch's data loaders use."""
    return judged_shared_memory(free_memory("/dev/shm"))


def python_version() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"


def free_memory(folder: str) -> int | None:
    """Return the free bytes in the folder's file system, or None if the folder does not exist."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def judged_kernel(system: str, release: str, cpus: int) -> CheckResult:
    text = f"{system} {release}, {cpus} CPU{'' if cpus == 1 else 's'} for this process"
    if system != "Linux":
        advice = "the agent is made for Linux; on other systems, expect orphaned processes and less precise reports"
        return CheckResult(CheckLevel.WARNING, text, advice)
    if _version(release) < _PIDFD_SINCE:
        advice = "use Linux 5.3 or later, which can watch workers without extra threads"
        return CheckResult(CheckLevel.OK, f"{text}; without pidfd", advice)
    return CheckResult(CheckLevel.OK, text)


def _version(release: str) -> tuple[int, ...]:
    numbers = release.split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())


def judged_processes(limit: int | None, workers: int) -> CheckResult:
    """Judge `limit`, the maximum number of processes and threads (None: unlimited)."""
    needed = workers * _TASKS_PER_WORKER + _OTHER_TASKS
    shown = "unlimited" if limit is None else str(limit)
    text = f"processes and threads: {shown}; this run may need {needed}"
    if limit is None or limit >= needed:
        return CheckResult(CheckLevel.OK, text)
    return CheckResult(CheckLevel.WARNING, text, f"run ulimit -u {needed} in the shell that starts elastic run")


def judged_shared_memory(free: int | None) -> CheckResult:
    """Judge the free space in /dev/shm, in bytes (None: /dev/shm does not exist)."""
    if free is None:
        return CheckResult(
            CheckLevel.WARNING, "/dev/shm does not exist", "mount a tmpfs there; data loaders and NCCL need it"
        )
    text = f"/dev/shm has {free // _MIB} MiB free"
    if free >= _ENOUGH_SHARED:
        return CheckResult(CheckLevel.OK, text)
    advice = "use docker run --shm-size=8g; in Kubernetes, mount an emptyDir with medium: Memory at /dev/shm"
    return CheckResult(CheckLevel.WARNING, text, advice)
