"""Lets an object choose the paths of log files. The agent writes the files.

`LogsSpecs`, `DefaultLogsSpecs`, `LogsDest` and `Std` have the same names as in torch. Torchrun's plugins are entry
points in the group `torchrun.logs_specs` (`--logs-specs NAME`).

The class in an entry point is called as torchrun calls it. Such a class is torch's or derives from torch's, so the
agent imports torch when the user selects an entry point."""

from __future__ import annotations

import abc
import os
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.errors import PluginError, Problem
from elastic_core.parsing import Std
from elastic_core.text import normalised
from elastic_core.workers.streams import Placement, Stream

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from importlib.metadata import EntryPoint

    from elastic_core.workers.streams import Placer

GROUP = "torchrun.logs_specs"
_FLAG = "--logs-specs"
_TORCHS_MODULE = "torch.distributed.elastic.multiprocessing"


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """Return the streams of each local rank. A rank that is missing from the map has no streams."""
    if isinstance(val_or_map, Std):
        return dict.fromkeys(range(local_world_size), val_or_map)
    return {rank: val_or_map.get(rank, Std.NONE) for rank in range(local_world_size)}


@dataclass
class LogsDest:
    """The paths of one round's files, by local rank. A stream without a path, or with an empty path, goes to the
    console. A stream that is also in a `tee_` map goes to both its file and the console."""

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class LogsSpecs(abc.ABC):
    """Chooses where the workers' output goes. Subclasses define `reify`.

    Args:
        log_dir: the folder for all files (default: a new temporary folder).
        redirects: the streams that go only to files, for all workers or by local rank.
        tee: the streams that go to both files and the console.
        local_ranks_filter: the workers whose output is shown on the console (default: all).
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abc.abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files for the next round. `envs` contains the workers' environments by local rank."""

    @property
    @abc.abstractmethod
    def root_log_dir(self) -> str | None:
        """The folder for all files."""


class DefaultLogsSpecs(LogsSpecs):
    """Puts stdout.log, stderr.log and error.json into
    `<log_dir>/<run id>_<random>/attempt_<restart count>/<local rank>/`. Rounds with the same restart count append to
    the same files. If `log_dir` is os.devnull, there are no files, and all output goes to the console.

    Raises:
        NotADirectoryError: `log_dir` is a file.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._run_log_dir: str | None = None
        if log_dir is not None and Path(log_dir).is_file():
            raise NotADirectoryError(f"log_dir must be a folder, but {log_dir} is a file")

    @property
    def root_log_dir(self) -> str | None:
        return self._root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        if self._root_log_dir == os.devnull:
            return LogsDest()
        redirects, tee = (to_map(wanted, max(envs, default=-1) + 1) for wanted in (self._redirects, self._tee))
        env = next(iter(envs.values()), {})
        attempt = f"attempt_{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        folder = Path(self._make_run_log_dir(env.get("TORCHELASTIC_RUN_ID", "job")), attempt)
        dest = LogsDest()
        dest.filtered_stdout, dest.filtered_stderr = (f"{folder}/filtered_{name}.log" for name in ("stdout", "stderr"))
        for rank in envs:
            own = folder / str(rank)
            own.mkdir(parents=True, exist_ok=True)
            dest.error_files[rank] = str(own / "error.json")
            shown = not self._local_ranks_filter or rank in self._local_ranks_filter
            for bit, name, files, teed in (
                (Std.OUT, "stdout.log", dest.stdouts, dest.tee_stdouts),
                (Std.ERR, "stderr.log", dest.stderrs, dest.tee_stderrs),
            ):
                written = bit in redirects[rank] | tee[rank]
                files[rank] = str(own / name) if written else "" if shown else os.devnull
                if bit in tee[rank] and shown:
                    teed[rank] = files[rank]
        return dest

    def _make_run_log_dir(self, run_id: str) -> str:
        if self._run_log_dir is None:
            if self._root_log_dir is None:
                self._root_log_dir = tempfile.mkdtemp(prefix="elastic-logs-")
            Path(self._root_log_dir).mkdir(parents=True, exist_ok=True)
            name = run_id.replace("/", "_")
            self._run_log_dir = tempfile.mkdtemp(prefix=f"{name}_", dir=self._root_log_dir)
        return self._run_log_dir

    def __repr__(self) -> str:
        found = (self._root_log_dir, self._redirects, self._tee, self._local_ranks_filter)
        names = ("log_dir", "redirects", "tee", "local_ranks_filter")
        return f"DefaultLogsSpecs({', '.join(f'{n}={v!r}' for n, v in zip(names, found, strict=True))})"


def placer_of(specs: Any, name: str = "") -> Placer:
    """Return the placer that calls `specs.reify`. `name` is the name of the entry point that provided the object, if
    any."""
    return partial(_place, name, specs)


def load_placer(
    name: str, points: Mapping[str, EntryPoint], log_dir: Path, redirects: str, tee: str, ranks: frozenset[int]
) -> Placer:
    """Return the placer for the entry point `name`.

    Args:
        points: the group's entry points by name.
        redirects, tee: the streams, in the format of the flags `-r` and `-t`.
        ranks: the local ranks whose output is shown on the console; empty for all.

    Raises:
        PluginError: there is no such entry point, or the entry point cannot be loaded or called.
    """
    if name not in points:
        known = ", ".join(sorted(points)) or "none is installed"
        raise PluginError(Problem(_FLAG, f"expected an entry point in the group {GROUP} ({known}), found {name!r}"))
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
    return placer_of(specs, name)


def installed_points(allowed: Collection[str] | None = None) -> dict[str, EntryPoint]:
    """Return the group's entry points by name. Unless `allowed` is None, only the distributions in `allowed` are
    searched."""
    from importlib.metadata import entry_points

    names = None if allowed is None else {normalised(name) for name in allowed}
    return {
        point.name: point
        for point in entry_points(group=GROUP)
        if names is None or (point.dist is not None and normalised(point.dist.name) in names)
    }


def _as_torch(text: str) -> Any:
    module = sys.modules.get(_TORCHS_MODULE)
    return module.Std.from_str(text) if module is not None else text


def _place(name: str, specs: Any, environments: dict[int, dict[str, str]]) -> Placement:
    try:
        found = specs.reify(environments)  # it may add variables, as in torch
        files: dict[tuple[int, Stream], str] = {}
        teed: set[tuple[int, Stream]] = set()
        filtered: dict[Stream, str] = {}
        for stream, suffix in ((Stream.OUT, "stdout"), (Stream.ERR, "stderr")):
            files |= {(rank, stream): path for rank, path in getattr(found, f"{suffix}s").items() if path}
            teed |= {(rank, stream) for rank, path in getattr(found, f"tee_{suffix}s").items() if _is_file(path)}
            if path := getattr(found, f"filtered_{suffix}", ""):
                filtered[stream] = path
        error_files = {rank: path for rank, path in found.error_files.items() if _is_file(path)}
        return Placement(files, frozenset(teed), error_files, filtered)
    except Exception as error:
        raise _broken(name, error) from error


def _is_file(path: str) -> bool:
    return bool(path) and path != os.devnull


def _broken(name: str, error: Exception) -> PluginError:
    found = f"{type(error).__name__}: {error}"
    if not name:
        return PluginError(Problem("logs_specs", f"`reify` did not return the log files: {found}"))
    advice = f"repair that plugin or omit {_FLAG}"
    return PluginError(Problem(_FLAG, f"{name!r} did not return the log files: {found}; {advice}"))
