"""What is installed: our distributions and their versions, plugins, and what the run selects. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError
from elastic_core.hooks.discovery import CORE
from elastic_core.hooks.kinds import KINDS
from elastic_core.hooks.options import type_options
from elastic_core.hooks.records import HealthEndpointRecord, RendezvousBackendRecord, WatchdogRecord
from elastic_core.operate.doctor.finding import Check, fault, note, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from elastic_core.config import Settings
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.hooks.records import Record
    from elastic_core.operate.doctor.finding import Finding

OURS: frozenset[str] = frozenset({CORE, *(home for kind in KINDS for home in kind.homes.values())})
"""The distributions that are released together."""


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
