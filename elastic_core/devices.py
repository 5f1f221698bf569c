"""How many workers a word such as `gpu` stands for on this machine.

Only torch knows what torch can use, so it is asked, in a process of its own: the agent never imports it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration

_FLAG = "--nproc-per-node"
_PROBE_TIMEOUT: Duration = 120.0

# Prints how many devices of the kind in argv[1] torch can use; "auto" takes whatever accelerator there is.
_PROBE = """
import sys, torch
kind = sys.argv[1]
if kind == "auto":
    print(torch.accelerator.device_count() if torch.accelerator.is_available() else 0)
else:
    module = getattr(torch, "cuda" if kind == "gpu" else kind, None)
    usable = module is not None and hasattr(module, "device_count") and module.is_available()
    print(module.device_count() if usable else 0)
"""


def usable_cpus() -> int:
    """The processors that this process may run on; fewer than the machine has where it is confined."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def probe_torch(kind: str, timeout: Duration = _PROBE_TIMEOUT) -> int:
    """How many devices of `kind` torch finds. Raises ConfigurationError when it cannot be asked within `timeout`."""
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _PROBE, kind], capture_output=True, text=True, timeout=timeout, check=True
        )
        return int(answer.stdout.split()[-1])
    except subprocess.TimeoutExpired:
        why = f"it did not answer in {timeout:g} s"
    except (subprocess.CalledProcessError, OSError, ValueError, IndexError) as error:
        lines = str(getattr(error, "stderr", "")).strip().splitlines()
        why = lines[-1] if lines else str(error)
    raise ConfigurationError(
        Problem(
            _FLAG,
            f"expected torch to count the devices for {kind!r}, found that it cannot: {why}; give a number instead",
        )
    )


def count_workers(wanted: int | str, probe: Callable[[str], int] = probe_torch) -> int:
    """The number of workers that `wanted` stands for: a number, `cpu`, `auto`, or the name of an accelerator.

    Raises:
        ConfigurationError: there is no such accelerator here.
    """
    if isinstance(wanted, int):
        return wanted
    if wanted == "cpu":
        return usable_cpus()
    found = _probe_auto(probe) if wanted == "auto" else probe(wanted)
    if found > 0:
        return found
    if wanted == "auto":
        return usable_cpus()
    raise ConfigurationError(
        Problem(
            _FLAG,
            f"expected a device of the kind {wanted!r}, found none that torch can use; check the driver and "
            "CUDA_VISIBLE_DEVICES, or use --nproc-per-node=cpu, auto or a number",
        )
    )


def _probe_auto(probe: Callable[[str], int]) -> int:
    """Without torch there is nothing to accelerate: then the processors count."""
    try:
        return probe("auto")
    except ConfigurationError:
        return 0
