"""Log placement by a plugin written for torchrun: an entry point in group `torchrun.logs_specs` (`--logs-specs NAME`).

Its class is called as torchrun calls it, and only asked where files go; the agent writes them. The class is torch's or
derives from torch's, so choosing it brings torch into the agent.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from elastic_core.errors import PluginError, Problem
from elastic_core.workers.streams import Placement, Stream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import EntryPoint
    from pathlib import Path

    from elastic_core.workers.streams import Placer

GROUP = "torchrun.logs_specs"
_FLAG = "--logs-specs"
_TORCHS_MODULE = "torch.distributed.elastic.multiprocessing"


def load_placer(
    name: str, points: Mapping[str, EntryPoint], log_dir: Path, redirects: str, tee: str, ranks: frozenset[int]
) -> Placer:
    """The placer of the entry point `name`.

    Args:
        points: the entry points of the group by name.
        redirects, tee: written as in the flags `-r` and `-t`.
        ranks: local ranks that write to the console, empty for all.

    Raises:
        PluginError: there is no such entry point, or it cannot be loaded or called.
    """
    if name not in points:
        known = ", ".join(sorted(points)) or "none is installed"
        raise PluginError(
            Problem(_FLAG, f"expected the name of an entry point in group {GROUP} ({known}), found {name!r}")
        )
    try:
        make = points[name].load()
        specs = make(
            log_dir=str(log_dir),
            redirects=_as_torch(redirects),
            tee=_as_torch(tee),
            local_ranks_filter=set(ranks) or None,
        )
    except Exception as error:
        raise _broken(name, error) from error
    return lambda environments: _place(name, specs, environments)


def installed_points() -> dict[str, EntryPoint]:
    """The entry points of the group, by name."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def _as_torch(text: str) -> Any:
    """The value in torch's own type if the plugin has loaded torch, else the text."""
    module = sys.modules.get(_TORCHS_MODULE)
    return module.Std.from_str(text) if module is not None else text


def _place(name: str, specs: Any, environments: Mapping[int, Mapping[str, str]]) -> Placement:
    try:
        found = specs.reify({rank: dict(variables) for rank, variables in environments.items()})
        return Placement(
            files={
                **{(rank, Stream.OUT): path for rank, path in found.stdouts.items() if path},
                **{(rank, Stream.ERR): path for rank, path in found.stderrs.items() if path},
            },
            teed=frozenset(
                [(rank, Stream.OUT) for rank, path in found.tee_stdouts.items() if path and path != os.devnull]
                + [(rank, Stream.ERR) for rank, path in found.tee_stderrs.items() if path and path != os.devnull]
            ),
            error_files={rank: path for rank, path in found.error_files.items() if path and path != os.devnull},
        )
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> PluginError:
    return PluginError(
        Problem(
            _FLAG,
            f"expected {name!r} to say where logs go, found {type(error).__name__}: {error}; "
            f"repair that plugin, or leave {_FLAG} out",
        )
    )
