"""Choose the device that workers train on, and observe GPUs from outside: the processes that use them, and the memory
in use.

NVIDIA's management library is called through ctypes, because pynvml may not be installed. In a container it often lists
no processes, or their ids outside the container, so /proc is read as well.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
FILES = "/dev/nvidia"
MOST_PROCESSES = 1024
FACTS_LIMIT_S = 180

# Runs in a short-lived process, so that neither the suite nor its parts hold a CUDA context.
FACTS = """
import json, torch
cuda = torch.cuda
count = cuda.device_count() if cuda.is_available() else 0
each = [cuda.get_device_properties(place) for place in range(count)]
nccl = cuda.nccl.version() if count else None
print(json.dumps({
    "gpus": [{"name": one.name, "memory_gib": round(one.total_memory / 2**30, 1)} for one in each],
    "cuda": torch.version.cuda,
    "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else nccl,
}))
"""


def on(kind: str, backend: str) -> dict[str, str]:
    """Let new workers train on this device. Returns entries for a report's settings."""
    os.environ |= {"BENCHMARK_DEVICE": kind, "BENCHMARK_BACKEND": backend}
    return {"backend": backend}


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """The management library. Made by `nvml`."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def driver(self) -> str:
        """The driver's version, or ""."""
        text = ctypes.create_string_buffer(80)
        return text.value.decode() if self._library.nvmlSystemGetDriverVersion(text, 80) == 0 else ""

    def pids(self) -> set[int]:
        """The processes with a CUDA context on any GPU, as the library lists them."""
        found: set[int] = set()
        for handle in self._handles():
            count = ctypes.c_uint(MOST_PROCESSES)
            processes = (_Process * MOST_PROCESSES)()
            with suppress(AttributeError):  # older drivers lack this function
                if self._library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes):
                    continue
                found |= {processes[place].pid for place in range(count.value)}
        return found

    def used_mib(self) -> float:
        """Memory in use on all GPUs together, by any process."""
        total = 0
        for handle in self._handles():
            memory = _Memory()
            if self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
                total += memory.used
        return total / 2**20

    def _handles(self) -> Iterator[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self._library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for place in range(count.value):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(place, ctypes.byref(handle)) == 0:
                yield handle


@contextmanager
def nvml(library: str = LIBRARY) -> Iterator[Nvml | None]:
    """The library until the end of the block; None if it is missing or finds no driver."""
    try:
        loaded = ctypes.CDLL(library)
        ready = loaded.nvmlInit_v2() == 0
    except (OSError, AttributeError):
        ready = False
    if not ready:
        yield None
        return
    try:
        yield Nvml(loaded)
    finally:
        loaded.nvmlShutdown()


def opens_device(pid: int, files: str = FILES) -> bool:
    """Whether the process has a GPU's device file open, as every process with a CUDA context does."""
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(link).startswith(files):
                    return True
    return False


def users(pids: Collection[int], listed: Collection[int]) -> set[int]:
    """The processes that use a GPU: the library lists them, or they have its device file open."""
    return {pid for pid in pids if pid in listed or opens_device(pid)}


def facts() -> dict[str, Any]:
    """GPUs, driver and versions, for the JSON. `gpus` is empty if torch finds none or has a `problem`."""
    found: dict[str, Any] = {"gpus": []}
    try:
        asked = subprocess.run(
            [sys.executable, "-c", FACTS], capture_output=True, text=True, check=True, timeout=FACTS_LIMIT_S
        )
        found |= json.loads(asked.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        found["problem"] = (str(getattr(error, "stderr", None) or error).strip().splitlines() or ["no answer"])[-1]
    with nvml() as library:
        if library:
            found["driver"] = library.driver()
    return found


def why_none(found: Mapping[str, Any]) -> str:
    """Why no GPU can be used, from `facts`. Mentions a loaded driver if torch finds no GPU."""
    if problem := found.get("problem"):
        return f"no CUDA device: {problem}"
    if driver := found.get("driver"):
        build = f"is built for CUDA {found['cuda']}" if found["cuda"] else "is built without CUDA"
        return f"no CUDA device for torch, which {build}, although NVIDIA's driver {driver} is loaded"
    return "no CUDA device"
