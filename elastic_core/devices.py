"""Determines the number of workers for a setting such as `gpu` by counting devices.

Only torch knows which devices it can use. The agent must not import torch, so a separate process queries it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from elastic_core.agent.reporter import Progress
from elastic_core.clock import SystemClock, later
from elastic_core.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration, Instant

_FLAG = "--nproc-per-node"
_PROBE_TIMEOUT: Duration = 120.0
_ENDING: Duration = 5.0  # seconds for a killed probe to end

ASKING = """
import sys
sys.path[:] = filter(None, sys.path)  # search for torch where a script would, not in the current directory
import os, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
import torch

def count(kind):
    if kind == "auto":
        accelerator = getattr(torch, "accelerator", torch.cuda)  # exists in torch 2.6 and later
        return accelerator.device_count() if accelerator.is_available() else 0
    module = getattr(torch, "cuda" if kind == "gpu" else kind, None)
    if not hasattr(module, "device_count"):
        return -1  # torch has no such device type
    return module.device_count() if module.is_available() else 0
"""
"""The first part of a program that queries torch. Its function `count` returns the number of usable devices of a type
("auto" for any accelerator), or -1 if torch does not know the type. The program's stdin must be a pipe. The program
exits when the pipe's write end closes."""

_PROBE = f"""
import sys
sys.path[:] = filter(None, sys.path)
from importlib.util import find_spec
if sys.argv[1] == "auto" and find_spec("torch") is None:
    print(0)
    sys.exit()
{ASKING}
print(count(sys.argv[1]))
"""


def usable_cpus() -> int:
    """Return the number of CPUs on which this process is allowed to run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def probe_torch(kind: str, timeout: Duration = _PROBE_TIMEOUT) -> int:
    """Return torch's count of `kind` devices, or -1 if torch does not know `kind`. Without torch, `auto` gives 0.
    Raises ConfigurationError if torch fails or does not answer within `timeout` seconds."""
    try:
        return int(_ask(kind, timeout).split()[-1])
    except subprocess.TimeoutExpired:
        why = f"no answer within {timeout:g} s"
    except (subprocess.CalledProcessError, OSError, ValueError, IndexError) as error:
        lines = str(getattr(error, "stderr", "")).strip().splitlines()
        why = lines[-1] if lines else str(error)
    raise ConfigurationError(Problem(_FLAG, f"torch cannot count {kind!r} devices: {why}; give a number instead"))


def _ask(kind: str, timeout: Duration) -> str:
    """Run the probe, and return its output. Raises the same errors as `subprocess.run`."""
    clock = SystemClock()
    begun = clock.now()
    progress = Progress(begun, "torch to count its devices")
    reader, writer = os.pipe()
    try:
        command = [sys.executable, "-c", _PROBE, kind]
        probe = subprocess.Popen(command, stdin=reader, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = _communicate(probe, progress, clock, later(begun, timeout))
        except BaseException:
            probe.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # in a hanging driver call, it ignores SIGKILL
                probe.wait(_ENDING)
            raise
        if probe.returncode:
            raise subprocess.CalledProcessError(probe.returncode, command, out, err)
        return out
    finally:
        os.close(reader)
        os.close(writer)


def _communicate(probe: subprocess.Popen[str], progress: Progress, clock: Clock, deadline: Instant) -> tuple[str, str]:
    while True:
        now = clock.now()
        until = min(progress.look(now), deadline)
        try:
            return probe.communicate(timeout=max(until - now, 0.0))
        except subprocess.TimeoutExpired:
            if clock.now() >= deadline:
                raise


def count_workers(wanted: int | str, probe: Callable[[str], int] = probe_torch) -> int:
    """Return the number of workers for `wanted`: a number, `cpu`, `auto`, or the name of an accelerator.

    Raises:
        ConfigurationError: this machine has no such accelerator.
    """
    if isinstance(wanted, int):
        return wanted
    if wanted == "cpu":
        return usable_cpus()
    found = probe(wanted)
    if found > 0:
        return found
    if wanted == "auto":
        return usable_cpus()
    if found < 0:
        known = f"expected a number, cpu, gpu, auto or a torch device type such as xpu, found {wanted!r}"
        raise ConfigurationError(Problem(_FLAG, known))
    missing = f"torch finds no usable {wanted!r} device; check the driver and CUDA_VISIBLE_DEVICES, or use "
    raise ConfigurationError(Problem(_FLAG, missing + "--nproc-per-node=cpu, auto or a number"))
