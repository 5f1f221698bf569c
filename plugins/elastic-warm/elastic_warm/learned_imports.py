"""Tracks which modules a job's workers import, and which of them the template must not import. This module does no
I/O."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_FORMAT = 1
_LINE = re.compile(r"(\d{1,9})\t(\d{1,9})\t([^\t]+)\t([^\t]*)")
_INDIRECT = ("imports ", "looks for ")


@dataclass
class LearnedImports:
    """The imports learned so far from workers' reports and from the template.

    Args:
        modules: the modules that all workers of the node import, mapped to their files (an empty string if there is no
            file).
        left: the modules that the template must not import, mapped to the reasons.
        seconds: how long the template took to import all other modules, or 0 if unknown.
    """

    modules: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    _heard: dict[str, set[int]] = field(default_factory=dict)
    _places: dict[str, int] = field(default_factory=dict)

    def hear(self, line: str, workers: int) -> bool:
        """Process a line of a worker's report, and return whether there is a new module to import. Invalid lines are
        ignored.

        A line consists of a local rank, a position in the order of imports (0 if the import has failed), a module, and
        the module's file, separated by tabs. `workers` is the number of running workers.
        """
        match = _LINE.fullmatch(line)
        if match is None:
            return False
        rank, place, name, origin = match.groups()
        if place == "0":
            self._heard.pop(name, None)
            self.modules.pop(name, None)
            return False
        ranks = self._heard.setdefault(name, set())
        ranks.add(int(rank))
        if len(ranks) < workers or name in self.modules or name.startswith("__"):
            return False
        self.modules[name] = origin
        self._places[name] = int(place)
        return True

    def in_order(self) -> list[tuple[str, str]]:
        """Return the modules with their files, in the order in which their imports began. Modules from earlier runs
        come first."""
        return sorted(self.modules.items(), key=lambda item: self._places.get(item[0], -1))

    def leave(self, name: str, why: str) -> None:
        """Leave this module to the workers from now on. The first reason is kept."""
        self.left.setdefault(name, why)

    @property
    def causes(self) -> dict[str, str]:
        """The modules that are left to the workers, with the reasons. Modules that are left only because they import
        another such module are omitted."""
        return {name: why for name, why in self.left.items() if not why.startswith(_INDIRECT)}

    def as_json(self, environment: Mapping[str, str], without: Iterable[str], varying: Iterable[str]) -> str:
        """Return the content of a cache file, including the environment for the next template (see `CachedImports`)."""
        content = {"format": _FORMAT, "modules": dict(self.in_order()), "left": self.left, "seconds": self.seconds}
        content |= {"environment": dict(environment), "without": sorted(without), "varying": sorted(varying)}
        return json.dumps(content, indent=1)


@dataclass(frozen=True)
class CachedImports:
    """The content of a cache file. The template's environment is the agent's environment, updated with `environment`,
    without the variables in `without`. `varying` lists the names of variables that differ between workers."""

    learned: LearnedImports
    environment: dict[str, str]
    without: frozenset[str]
    varying: frozenset[str]


def from_json(text: str) -> CachedImports | None:
    """Parse a cache file. Returns None if it is invalid or has another version."""
    try:
        content = json.loads(text)
        if content["format"] != _FORMAT:
            return None
        seconds = float(content["seconds"])
        if not 0 <= seconds < math.inf:
            return None
        learned = LearnedImports(_texts(content["modules"]), _texts(content["left"]), seconds)
        without, varying = frozenset(map(str, content["without"])), frozenset(map(str, content["varying"]))
        return CachedImports(learned, _texts(content["environment"]), without, varying)
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None


def _texts(given: Mapping[str, str]) -> dict[str, str]:
    return {str(name): str(value) for name, value in given.items()}


def cache_name(python: Sequence[str], version: str, program: str) -> str:
    """Return the name of the cache file for this Python and this program. A program is a path, module or function."""
    key = hashlib.sha256("\0".join((*python, version, program)).encode("utf-8", "surrogateescape")).hexdigest()
    return f"warm-{key[:24]}.json"
