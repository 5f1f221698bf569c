"""What is installed: our distributions and their versions, plugins, what the run selects, and torch with its devices,
which is asked in a process of its own, with a bound. All judgements are pure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.devices import ASKING, count_workers
from elastic_core.errors import ConfigurationError
from elastic_core.hooks.discovery import CORE
from elastic_core.hooks.options import type_options
from elastic_core.hooks.records import KINDS, HealthEndpointRecord, RendezvousBackendRecord, WatchdogRecord
from elastic_core.operate.doctor.finding import Check, fault, note, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from elastic_core.clock import Duration
    from elastic_core.config import Settings
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.hooks.records import Record
    from elastic_core.operate.doctor.finding import Finding

OURS: frozenset[str] = frozenset({CORE, *(home for kind in KINDS for home in kind.homes.values())})
"""The distributions that are released together."""

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


def versions_of(manager: PluginManager, core: str) -> dict[str, str]:
    """The version of each of our distributions that is here, by name. `core`: that of elastic-core."""
    sources = [*(plugin.source for plugin in manager.plugins), *manager.blocked]
    sources += [failure.source for failure in manager.failures]
    found = {source.distribution: source.version for source in sources if source.distribution in OURS}
    return {CORE: core, **{name: found[name] for name in sorted(found) if name != CORE}}


def judged_versions(versions: Mapping[str, str]) -> Finding:
    """They are released together, and tested together."""
    core = versions[CORE]
    others = [f"{name}=={core}" for name, version in versions.items() if version != core]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    if not others:
        return ok(Check.VERSIONS, listed)
    return warning(
        Check.VERSIONS, f"{listed}: they are not of one version", f"pip install {' '.join(others)}, on every node"
    )


def judged_plugins(manager: PluginManager) -> Iterator[Finding]:
    """Whatever failed, was blocked, or contradicts another."""
    for failure in manager.failures:
        advice = f"repair it, or pip uninstall {failure.source.distribution}; elastic plugins --json has the traceback"
        yield warning(Check.PLUGINS, f"failed to load: {failure}", advice)
    for conflict in manager.conflicts():
        names = " and ".join(source.described for source in conflict.sources)
        told = f"the {conflict.noun} {conflict.name!r} is provided by {names}"
        yield warning(Check.PLUGINS, told, f"uninstall one, or block one: {conflict.remedy}")
    for source in manager.blocked:
        yield note(Check.PLUGINS, f"blocked by ELASTIC_DISABLE_PLUGINS: {source.described}")
    if not (manager.failures or manager.conflicts() or manager.blocked):
        yield ok(Check.PLUGINS, f"{len(manager.plugins)} loaded, none failed")


def judged_choices(settings: Settings, manager: PluginManager) -> Iterator[Finding]:
    """Whether what the flags select is there, and takes the options given."""
    chosen: tuple[tuple[type[Record], str | None, Mapping[str, str], str], ...] = (
        (RendezvousBackendRecord, settings.rdzv_backend, settings.rdzv_conf, "--rdzv-conf"),
        (WatchdogRecord, settings.watchdog, settings.watchdog_conf, "--watchdog-conf"),
        (HealthEndpointRecord, settings.health, settings.health_conf, "--health-conf"),
    )
    for kind, name, conf, origin in chosen:
        if name is not None:
            yield from _choice(kind, name, conf, origin, manager)


def _choice(
    kind: type[Record], name: str, conf: Mapping[str, str], origin: str, manager: PluginManager
) -> Iterator[Finding]:
    noun = next(item.noun for item in KINDS if item.record is kind)
    try:
        chosen = manager.provided(kind, name)
    except ConfigurationError as error:
        lines = [line.strip() for problem in error.problems for line in problem.message.splitlines()]
        cure = [line.removeprefix("to get it: ") for line in lines if line.startswith("to get it: ")]
        told = "; ".join(line for line in lines if not line.startswith("to get it: "))
        yield fault(Check.BACKEND, told, "".join(cure) or "elastic plugins shows what is installed; name one of those")
        return
    _, problems = type_options(chosen.record.options, conf, origin)
    yield from (
        fault(Check.BACKEND, str(problem), "correct it; elastic plugins lists the options") for problem in problems
    )
    if not problems:
        yield ok(Check.BACKEND, f"{noun} {name} ({chosen.source})")


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
