"""Checks this machine and its installed software: limits, plugins and their versions, torch and its devices.
Measurements are separate from judgments, which are pure functions."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.diagnostics import ASKING, CORE, OURS, count_workers
from elastic_core.plugin import ConfigurationError, Settings
from elastic_doctor.finding import Check, fault, note, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from elastic_core.diagnostics import Plan, PluginManager
    from elastic_core.plugin import CheckResult, Context, Duration, Problem

_CURE = "to install it: "
FILES_PER_NODE = 4  # the number of connections from a node to the store
_OTHER_FILES = 256
_FOR_TORCH: Duration = 60.0

_BACKENDS = ("gloo", "nccl", "mpi")
_PROGRAM = (
    ASKING
    + f"""
import json
import torch.distributed as d
there = d.is_available()
has = [name for name in {_BACKENDS} if there and getattr(d, f"is_{{name}}_available")()]
print(json.dumps({{"version": torch.__version__, "backends": has, "devices": count(sys.argv[1])}}))
"""
)


def judged_files(soft: int, hard: int, nodes: int) -> CheckResult:
    """Judge the limits on open files, given as `getrlimit` returns them. The store's host has `FILES_PER_NODE`
    connections per node, and raises its soft limit as far as the hard limit allows."""
    needed = nodes * FILES_PER_NODE + _OTHER_FILES
    text = f"open files: {_shown(soft)}, can be raised to {_shown(hard)}; this run needs {needed}"
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return ok(Check.FILE_LIMIT, text)
    return warning(
        Check.FILE_LIMIT,
        text,
        f"on the store's host, run ulimit -Hn {needed} (systemd: LimitNOFILE=, docker: --ulimit nofile=)",
    )


def _shown(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def versions_of(manager: PluginManager, core: str) -> dict[str, str]:
    """Return the versions of our installed distributions, by name. `core` is the version of elastic-core."""
    sources = [*(plugin.source for plugin in manager.plugins), *manager.blocked]
    sources += [failure.source for failure in manager.failures]
    found = {source.distribution: source.version for source in sources if source.distribution in OURS}
    return {CORE: core, **{name: found[name] for name in sorted(found) if name != CORE}}


def judged_versions(versions: Mapping[str, str]) -> CheckResult:
    """Judge the versions of our distributions. They should be equal, because the distributions are released
    together."""
    core = versions[CORE]
    others = [f"{name}=={core}" for name, version in versions.items() if version != core]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    if not others:
        return ok(Check.VERSIONS, listed)
    return warning(Check.VERSIONS, f"versions differ: {listed}", f"pip install {' '.join(others)}, on every node")


def judged_plugins(manager: PluginManager) -> Iterator[CheckResult]:
    """Report plugins that failed to load, are blocked, or provide the same name as another plugin."""
    for failure in manager.failures:
        advice = f"fix it, or pip uninstall {failure.source.distribution}; elastic plugins --json has the traceback"
        yield warning(Check.PLUGINS, f"failed to load: {failure}", advice)
    for conflict in manager.conflicts():
        names = " and ".join(source.described for source in conflict.sources)
        text = f"the {conflict.noun} {conflict.name!r} is provided by {names}"
        yield warning(Check.PLUGINS, text, f"uninstall one, or block one: {conflict.remedy}")
    for source, by in manager.blocked.items():
        yield note(Check.PLUGINS, f"blocked by {by}: {source.described}")
    unknown = [*manager.about_unknown_blocks(), *manager.about_unknown_allowed()]
    for text in unknown:
        yield warning(Check.PLUGINS, text, "correct the name; elastic plugins lists the names")
    if not (manager.failures or manager.conflicts() or manager.blocked or unknown):
        yield ok(Check.PLUGINS, f"{len(manager.plugins)} loaded, none failed")


def judged_choices(plan: Plan) -> Iterator[CheckResult]:
    """Judge whether the selected plugins are installed and accept their options."""
    yield from map(_refused, plan.error.problems if plan.error else ())
    for kind, chosen in plan.chosen.items():
        if chosen.record.name != Settings.rank_policy:
            yield ok(Check.BACKEND, f"{kind.noun} {chosen.record.name} ({chosen.source})")


def _refused(problem: Problem) -> CheckResult:
    lines = [line.strip() for line in str(problem).splitlines()]
    cure = [line.removeprefix(_CURE) for line in lines if line.startswith(_CURE)]
    text = "; ".join(line for line in lines if not line.startswith(_CURE))
    if not cure and len(lines) == 1:
        text, *cure = text.split("; ", 1)
    return fault(Check.BACKEND, text, "".join(cure) or "correct it; elastic plugins lists names and options")


@dataclass(frozen=True)
class Torch:
    """The installed torch.

    Args:
        version: empty if torch is not installed or cannot be used.
        backends: the backends of `torch.distributed`.
        devices: number of devices of the requested kind.
        problem: why torch cannot be used; empty if it can be used or is not installed.
    """

    version: str = ""
    backends: tuple[str, ...] = ()
    devices: int = 0
    problem: str = ""


def check_torch(context: Context) -> Iterator[CheckResult]:
    """Check torch and its devices in a subprocess."""
    workers = context.settings["nproc_per_node"]
    kind = workers if isinstance(workers, str) and workers != "cpu" else "auto"
    return judged_torch(probed_torch(kind, max(_FOR_TORCH, context.options.get("timeout", 0.0))), workers)


def probed_torch(kind: str, timeout: Duration, python: str = sys.executable) -> Torch:
    """Import torch in a subprocess, and return its version, its backends and the number of its devices of `kind` (see
    `count_workers`)."""
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            [python, "-c", _PROGRAM, kind], stdin=reader, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return Torch(problem=f"no answer within {timeout:g} s")
    except OSError as error:
        return Torch(problem=str(error))
    finally:
        os.close(reader)
        os.close(writer)
    return read_answer(done.returncode, done.stdout, done.stderr)


def read_answer(code: int, out: str, err: str) -> Torch:
    """Parse the output of the subprocess that `probed_torch` has run."""
    lines = err.strip().splitlines()
    last = lines[-1] if lines else f"exit code {code}"
    if code:
        absent = last.startswith("ModuleNotFoundError") and "'torch'" in last
        return Torch() if absent else Torch(problem=last)
    try:
        answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return Torch(str(answer["version"]), tuple(map(str, answer["backends"])), int(answer["devices"]))
    except (ValueError, LookupError, TypeError) as error:
        return Torch(problem=f"its answer cannot be read: {error}")


def judged_torch(torch: Torch, wanted: int | str) -> Iterator[CheckResult]:
    """Judge torch and its devices. `wanted` is the number of workers per node, as in the settings."""
    if not torch.version:
        asked = bool(torch.problem) and isinstance(wanted, str) and wanted != "cpu"  # `run` needs torch for devices
        yield _absent(torch.problem, asked)
        return
    text = f"torch {torch.version} with {', '.join(torch.backends) or 'none of gloo, nccl and mpi'}"
    missing = [name for name in ("gloo", *(["nccl"] if torch.devices > 0 else [])) if name not in torch.backends]
    if missing:
        advice = f"init_process_group({missing[0]!r}) would fail; install a build of torch that supports it"
        yield warning(Check.TORCH, text, advice)
    else:
        yield ok(Check.TORCH, text)
    yield _accelerators(torch.devices, wanted)


def _absent(problem: str, asked: bool) -> CheckResult:
    if problem:
        text = f"torch is installed but cannot be used: {problem}"
        advice = 'python -c "import torch" shows more; reinstall torch, or raise --timeout'
        return fault(Check.TORCH, text, advice) if asked else warning(Check.TORCH, text, advice)
    text = "torch is not installed for this Python"
    return note(Check.TORCH, text, "pip install torch if the script needs it; elastic run does not")


def _accelerators(devices: int, wanted: int | str) -> CheckResult:
    try:
        workers = count_workers(wanted, lambda kind: devices)
    except ConfigurationError as error:
        return fault(Check.ACCELERATORS, str(error).partition("; ")[0], str(error).partition("; ")[2])
    plural = "" if workers == 1 else "s"
    text = f"{devices} usable by torch; --nproc-per-node={wanted} means {workers} worker{plural}"
    if 0 < devices < workers:
        return warning(Check.ACCELERATORS, text, f"workers would share them; use --nproc-per-node={devices}, or auto")
    return ok(Check.ACCELERATORS, text)
