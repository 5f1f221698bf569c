"""This machine: Python, kernel, limits, shared memory. `measured_machine` measures; what judges is pure."""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.devices import usable_cpus
from elastic_core.operate.doctor.finding import Check, note, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_core.operate.doctor.finding import Finding

FILES_PER_NODE = 4  # connections that a node has to the store
_OTHER_FILES = 256
_TASKS_PER_WORKER = 128  # a worker with torch has tens of threads, and each counts
_OTHER_TASKS = 256
_ENOUGH_SHARED = 256 << 20
_MIB = 1 << 20
_PIDFD_SINCE = (5, 3)


@dataclass(frozen=True)
class Limit:
    """A resource limit; None: none."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True)
class Machine:
    """What was measured. `shared_memory`: bytes free in /dev/shm, None if there is none."""

    python: str
    kernel: str
    cpus: int
    files: Limit
    processes: Limit
    shared_memory: int | None


def measured_machine(shared: str = "/dev/shm") -> Machine:
    """This one. `shared`: where its shared memory is."""
    return Machine(
        f"{platform.python_implementation()} {platform.python_version()}",
        f"{platform.system()} {platform.release()}",
        usable_cpus(),
        _limit(resource.RLIMIT_NOFILE),
        _limit(resource.RLIMIT_NPROC),
        _free(shared),
    )


def _limit(which: int) -> Limit:
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which))
    return Limit(soft, hard)


def _free(folder: str) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def judged_machine(machine: Machine, nodes: int, workers: int, may_host: bool) -> Iterator[Finding]:
    """`nodes`: the most that the job may have; `workers`: on this one; `may_host`: it may host the store."""
    yield ok(Check.PYTHON, machine.python)
    yield judged_kernel(machine.kernel, machine.cpus)
    yield judged_files(machine.files, nodes if may_host else 0)
    yield judged_processes(machine.processes, workers)
    yield judged_shared_memory(machine.shared_memory)


def judged_kernel(kernel: str, cpus: int) -> Finding:
    """Without pidfd the agent needs a thread for each worker, and works."""
    told = f"{kernel}, {cpus} processor{'' if cpus == 1 else 's'} for this process"
    system, _, release = kernel.partition(" ")
    if system != "Linux":
        return warning(Check.KERNEL, told, "the agent is made for Linux; expect orphans and worse reports elsewhere")
    if _version(release) < _PIDFD_SINCE:
        return note(Check.KERNEL, f"{told}; without pidfd", "Linux 5.3 or later watches workers without extra threads")
    return ok(Check.KERNEL, told)


def _version(release: str) -> tuple[int, ...]:
    numbers = release.split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())


def judged_files(files: Limit, nodes: int) -> Finding:
    """The store's host has `FILES_PER_NODE` connections for each node. The soft limit is raised as far as allowed."""
    needed = nodes * FILES_PER_NODE + _OTHER_FILES
    told = f"open files: {_shown(files.soft)}, can be raised to {_shown(files.hard)}; this run needs {needed}"
    if files.hard is None or files.hard >= needed:
        return ok(Check.FILE_LIMIT, told)
    return warning(
        Check.FILE_LIMIT,
        told,
        f"where the store is hosted: ulimit -Hn {needed} (LimitNOFILE= of a systemd unit, --ulimit nofile= of docker)",
    )


def judged_processes(processes: Limit, workers: int) -> Finding:
    """Threads count as processes there, those of the user's other programs too."""
    needed = workers * _TASKS_PER_WORKER + _OTHER_TASKS
    told = f"processes and threads: {_shown(processes.soft)}; this run may need {needed}"
    if processes.soft is None or processes.soft >= needed:
        return ok(Check.PROCESS_LIMIT, told)
    return warning(Check.PROCESS_LIMIT, told, f"ulimit -u {needed} or more, in the shell that starts elastic run")


def judged_shared_memory(free: int | None) -> Finding:
    """NCCL and torch's data loaders share memory there."""
    if free is None:
        return warning(
            Check.SHARED_MEMORY, "there is no /dev/shm", "mount a tmpfs there; data loaders and NCCL need it"
        )
    told = f"/dev/shm has {free // _MIB} MiB free"
    if free >= _ENOUGH_SHARED:
        return ok(Check.SHARED_MEMORY, told)
    advice = "docker run --shm-size=8g; in Kubernetes an emptyDir with medium: Memory at /dev/shm"
    return warning(Check.SHARED_MEMORY, told, advice)


def _shown(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)
