"""Torch: whether it is here, which of its backends, which devices. Asked in a process of its own, with a bound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.devices import ASKING, count_workers
from elastic_core.errors import ConfigurationError
from elastic_core.operate.doctor.finding import Check, fault, note, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_core.clock import Duration
    from elastic_core.operate.doctor.finding import Finding

_BACKENDS = ("gloo", "nccl", "mpi")
_PROGRAM = (
    ASKING
    + """
import json
import torch.distributed as d
there = d.is_available()
has = {name: there and bool(getattr(d, f"is_{name}_available")()) for name in ("gloo", "nccl", "mpi")}
print(json.dumps({"version": torch.__version__, "backends": has, "devices": count(sys.argv[1])}))
"""
)


@dataclass(frozen=True)
class Torch:
    """What was found out.

    Args:
        version: empty if it is not here, or cannot be asked.
        backends: of `torch.distributed`.
        devices: of the kind that was asked for.
        problem: why it cannot be asked; empty with an empty version: it is not installed.
    """

    version: str = ""
    backends: tuple[str, ...] = ()
    devices: int = 0
    problem: str = ""


def probed_torch(kind: str, timeout: Duration, python: str = sys.executable) -> Torch:
    """Ask torch for its devices of `kind`, as `count_workers` names them, within `timeout` seconds."""
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            [python, "-c", _PROGRAM, kind], stdin=reader, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return Torch(problem=f"it did not answer in {timeout:g} s")
    except OSError as error:
        return Torch(problem=str(error))
    finally:
        os.close(reader)
        os.close(writer)
    return read_answer(done.returncode, done.stdout, done.stderr)


def read_answer(code: int, out: str, err: str) -> Torch:
    """What the program printed."""
    lines = err.strip().splitlines()
    last = lines[-1] if lines else f"exit code {code}"
    if code:
        absent = last.startswith("ModuleNotFoundError") and "'torch'" in last
        return Torch() if absent else Torch(problem=last)
    try:
        answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        has = answer["backends"]
        return Torch(str(answer["version"]), tuple(name for name in _BACKENDS if has[name]), int(answer["devices"]))
    except (ValueError, LookupError, TypeError) as error:
        return Torch(problem=f"its answer cannot be read: {error}")


def judged_torch(torch: Torch, is_needed: bool, wanted: int | str) -> Iterator[Finding]:
    """`is_needed`: the backend of the run cannot be without; `wanted`: workers per node, as in the settings."""
    if not torch.version:
        yield _absent(torch.problem, is_needed)
        return
    told = f"torch {torch.version} with {', '.join(torch.backends) or 'neither gloo nor nccl nor mpi'}"
    yield from _with_backends(told, torch)
    yield _accelerators(torch.devices, wanted)


def _absent(problem: str, is_needed: bool) -> Finding:
    if problem:
        told = f"torch is here and cannot be used: {problem}"
        advice = 'python -c "import torch" shows more; reinstall it, or give it more time with --timeout'
        return fault(Check.TORCH, told, advice) if is_needed else warning(Check.TORCH, told, advice)
    told = "torch is not installed for this Python"
    if is_needed:
        return fault(Check.TORCH, f"{told}, and the backend needs it", "pip install torch, the same on every node")
    return note(Check.TORCH, told, "pip install torch, if the script needs it; elastic run itself does not")


def _with_backends(told: str, torch: Torch) -> Iterator[Finding]:
    missing = [name for name in ("gloo", *(["nccl"] if torch.devices else [])) if name not in torch.backends]
    if missing:
        advice = f"scripts with init_process_group({missing[0]!r}) fail; install a build of torch that has it"
        yield warning(Check.TORCH, told, advice)
    else:
        yield ok(Check.TORCH, told)


def _accelerators(devices: int, wanted: int | str) -> Finding:
    try:
        workers = count_workers(wanted, lambda kind: devices)
    except ConfigurationError as error:
        return fault(Check.ACCELERATORS, str(error).partition("; ")[0], str(error).partition("; ")[2])
    told = (
        f"{devices} that torch can use; --nproc-per-node={wanted} means {workers} worker{'' if workers == 1 else 's'}"
    )
    if 0 < devices < workers:
        return warning(Check.ACCELERATORS, told, f"workers would share them; --nproc-per-node={devices}, or auto")
    return ok(Check.ACCELERATORS, told)
