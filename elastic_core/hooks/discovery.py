"""Finds installed plugins without importing them, and reads the user's lists of blocked and allowed names."""

from __future__ import annotations

import contextlib
import functools
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.errors import described_error
from elastic_core.text import normalised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from importlib.metadata import Distribution, EntryPoint

CORE = "elastic-core"
GROUP = "elastic"
HANDLERS_GROUP = "torchrun.handlers"
DISABLE_VARIABLE = "ELASTIC_DISABLE_PLUGINS"
ALLOW_FLAG, ALLOW_VARIABLE = "--plugins", "ELASTIC_PLUGINS"
BUILTIN = "elastic_core.builtin"
"""The core's own plugin."""


@dataclass(frozen=True, order=True)
class Source:
    """The origin of a plugin. `plugin` is the name of the plugin's entry point in the distribution."""

    distribution: str
    plugin: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"

    @property
    def described(self) -> str:
        """The plugin's description for messages, such as `plugin 'slack' of acme-slack 1.0`."""
        return f"plugin {self.plugin!r} of {self}"

    @property
    def names(self) -> set[str]:
        """The normalized names by which users can block the plugin."""
        plugin, distribution = normalised(self.plugin), normalised(self.distribution)
        return {plugin, distribution, f"{distribution}:{plugin}"}

    def as_dict(self) -> dict[str, str]:
        """Return the source as fields for log lines and JSON."""
        return {"plugin": self.plugin, "distribution": self.distribution, "version": self.version}


@dataclass(frozen=True)
class Candidate:
    """A plugin that can be loaded. `target` is its import path, either `module` or `module:attribute`."""

    source: Source
    target: str
    load: Callable[[], Any]


@dataclass(frozen=True)
class Failure:
    """A plugin that could not be loaded."""

    source: Source
    reason: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.source.described}, under {CORE} {own_version()}: {self.reason}"


def failure_of(source: Source, error: BaseException) -> Failure:
    """Return the record for a plugin that failed with `error`."""
    return Failure(source, described_error(error), "".join(traceback.format_exception(error)))


@functools.cache
def own_version() -> str:
    """Return the version of elastic-core, or `(checkout)` if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(CORE)
    except metadata.PackageNotFoundError:
        return "(checkout)"


def installed_entry_points() -> tuple[list[EntryPoint], list[Failure]]:
    """Return the entry points in both groups, and a failure for each distribution with an invalid `entry_points.txt`.
    The core's own plugin is always included, even in a checkout without package metadata.

    Only files that mention one of the groups are parsed. A broken file in an unrelated distribution is therefore
    harmless, and a large environment is read quickly.
    """
    from importlib import metadata

    found: dict[str, list[EntryPoint]] = {}
    failures: list[Failure] = []
    for distribution in metadata.distributions():
        if not _concerns_us(distribution):
            continue
        try:
            points = [point for point in distribution.entry_points if point.group in (GROUP, HANDLERS_GROUP)]
            name = _source("", distribution).distribution
            found.setdefault(normalised(name), points)  # Python imports the first of two copies on sys.path
        except Exception as error:  # noqa: BLE001 - the metadata may contain anything
            failures.append(failure_of(_source("entry_points.txt", distribution), error))
    points = [point for points in found.values() for point in points]
    if all(point.value != BUILTIN for point in points):
        points.append(metadata.EntryPoint("builtin", BUILTIN, GROUP))
    return points, failures


def _concerns_us(distribution: Distribution) -> bool:
    try:
        text = distribution.read_text("entry_points.txt") or ""
    except (OSError, UnicodeError):
        return False
    return f"[{GROUP}]" in text or f"[{HANDLERS_GROUP}]" in text


def _source(plugin: str, distribution: Distribution | None) -> Source:
    if distribution is None:  # a checkout of the core
        return Source(CORE, plugin, own_version())
    name = version = None
    with contextlib.suppress(Exception):  # the metadata may contain anything
        name, version = distribution.metadata["Name"], distribution.metadata["Version"]
    return Source(name or "(unknown distribution)", plugin, version or "(unknown version)")


def candidates(points: Iterable[EntryPoint], group: str) -> list[Candidate]:
    """Return the entry points in one group as candidates, ordered by distribution and name."""
    found = [
        Candidate(_source(point.name, point.dist), point.value.replace(" ", ""), point.load)
        for point in points
        if point.group == group
    ]
    return sorted(found, key=lambda candidate: candidate.source)


def listed_names(environ: Mapping[str, str], variable: str) -> list[str]:
    """Return the names in a variable that contains a comma-separated list."""
    return [name.strip() for name in environ.get(variable, "").split(",") if name.strip()]
