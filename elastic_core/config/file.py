"""The config file: `elastic.toml`, or the table `[tool.elastic]` of pyproject.toml.

Keys are the settings' names, with dashes or underscores, and a few short names (`backend`, `endpoint`, `run_id`). The
table `[rendezvous]` has the keys `backend`, `endpoint` and `id`, and may contain a table of options for each backend
(`[rendezvous.etcd]`).

A config file decides which program runs and which files are written. For security, the search skips any file that is
world-writable or belongs to another user, and warns about it. A file given with `--config` is always used.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elastic_core.compat import FLAG_HOMES
from elastic_core.config.sources import to_load
from elastic_core.config.spec import Findings, RawValue
from elastic_core.errors import Problem
from elastic_core.parsing import parse_path
from elastic_core.support.files import foreign
from elastic_core.text import did_you_mean, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from elastic_core.config.spec import Spec

_OWN = "elastic.toml"
_SHARED = "pyproject.toml"
RENDEZVOUS = "rendezvous"
_OF_NO_BACKEND = ("conf", "options", "rdzv-conf", "rdzv_conf")  # common guesses, which are not backends
_HEAD = 1 << 16  # how many bytes of another user's file to search for our table
_OF_RENDEZVOUS = {"backend": "rdzv_backend", "endpoint": "rdzv_endpoint", "id": "rdzv_id"}


class _Unreadable(Exception):
    """The config file cannot be used. The message states the reason."""


@dataclass(frozen=True)
class ConfigFile:
    """The parsed config file.

    Args:
        path: the file's path, or None if there is no config file.
        table: the file's settings for elastic.
        problem: why the file cannot be used, or None if it can be used.
        left_out: files that the search skipped.
    """

    path: Path | None = None
    table: Mapping[str, Any] = field(default_factory=dict)
    problem: Problem | None = None
    left_out: Sequence[Problem] = ()

    def findings(self, specs: Mapping[str, Spec]) -> Findings:
        """Return the file's values for these settings, and the problems found in the file."""
        findings = Findings(config_file=self.path, left_out=list(self.left_out))
        if self.problem is not None:
            findings.problems.append(self.problem)
        elif self.path is not None:
            _read(findings, self.path, self.table, specs)
        return findings


def config_file(named: RawValue | None, cwd: Path, home: str) -> ConfigFile:
    """Read the config file `named` (relative to `cwd`). If `named` is None, search `cwd` and its parents for a config
    file. The search stops at the home directory, `home`, and at a file system boundary."""
    left_out: list[Problem] = []
    try:
        path = _locate(cwd, home, left_out) if named is None else cwd / parse_path(named.raw)
    except ValueError:  # reported when the setting is parsed
        path = None
    if path is None:
        return ConfigFile(left_out=left_out)
    try:
        table = _table(path)
        if table is None and named is not None:
            raise _Unreadable(f"{path} has no table [tool.elastic]; add it, or name another file")
        return ConfigFile(path, table or {}, left_out=left_out)
    except _Unreadable as error:
        problem = Problem(str(path) if named is None else named.origin, str(error))
        return ConfigFile(path, problem=problem, left_out=left_out)


def _locate(cwd: Path, home: str, left_out: list[Problem]) -> Path | None:
    for folder in _upwards(cwd, home):
        for path in (folder / _OWN, folder / _SHARED):
            # Not pathlib: `Path.is_file` raises if a parent folder is not accessible.
            if not os.path.isfile(path):  # noqa: PTH113
                continue
            if why := _distrusted(path):
                if path.name == _OWN or _mentions_us(path):
                    left_out.append(Problem(str(path), f"ignored because {why}; to use it, pass it with --config"))
            elif path.name == _OWN or _has_our_table(path):
                return path
    return None


def _upwards(cwd: Path, home: str) -> Iterator[Path]:
    """Yield `cwd` and its parents, up to the home directory or the root of the file system, whichever comes first."""
    for folder in (cwd, *cwd.parents):
        yield folder
        with contextlib.suppress(OSError):  # there may be no home directory, or no permission to search a parent
            device = folder.stat().st_dev
            if device != folder.parent.stat().st_dev or (home and folder.samefile(home)):
                return


def _distrusted(path: Path) -> str:
    try:
        return foreign(path)
    except OSError:
        return ""  # reading the file reports why it is unreadable


def _mentions_us(path: Path) -> bool:
    """Return whether an untrusted pyproject.toml appears to contain `[tool.elastic]`, without parsing the file."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and b"tool.elastic" in file.read(_HEAD)
    except OSError:
        return False


def _has_our_table(path: Path) -> bool:
    """Return whether a pyproject.toml contains `[tool.elastic]` or, if malformed, appears to contain it."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        # Most files do not contain this word, so they need not be parsed, and no TOML parser need be imported.
        return "elastic" in text and _table(path) is not None
    except _Unreadable:
        return "tool.elastic" in text
    except OSError:
        return False


def _table(path: Path) -> Mapping[str, Any] | None:
    """Return the settings in the file, or None for a pyproject.toml without `[tool.elastic]`."""
    document = _parse(path)
    if path.name != _SHARED:
        return document
    tool = document.get("tool", {})
    table = tool.get("elastic") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise _Unreadable(f"expected [tool.elastic] to be a table, found {table!r}")
    return table


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin the file with a byte order mark
    except OSError as error:
        raise _Unreadable(f"cannot read the config file {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise _Unreadable(f"{path} is not valid UTF-8 (at byte {error.start}); save it as UTF-8") from None
    # Imported here because most runs have no config file.
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        parsed: dict[str, Any] = toml.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Unreadable(f"{path} is not valid TOML: {error}") from None
    return parsed


def _read(findings: Findings, path: Path, table: Mapping[str, object], specs: Mapping[str, Spec]) -> None:
    keys = {key: spec.name for spec in specs.values() if spec.name != "config" for key in (spec.name, *spec.aliases)}
    prefix = f"{path.name}: " + ("tool.elastic." if path.name == _SHARED else "")
    for written, raw in table.items():
        key = written.replace("-", "_")
        origin = prefix + written
        if key == RENDEZVOUS:
            _read_rendezvous(findings, origin, raw)
        elif key not in keys:
            near, home = nearest(key, (*keys, RENDEZVOUS)), FLAG_HOMES.get(key)
            advice = f"did you mean {near}?" if near else "elastic explain lists the settings"
            message = f"unknown setting; {to_load(home) if home else advice}"
            findings.problems.append(Problem(origin, message))
        else:
            _add(findings, keys[key], RawValue(raw, origin))
    flat = findings.found.get("rdzv_conf")
    if flat is not None:
        findings.problems += [Problem(it.origin, _once(flat)) for it in findings.by_backend.values()]


def _read_rendezvous(findings: Findings, origin: str, raw: object) -> None:
    if not isinstance(raw, dict):
        findings.problems.append(Problem(origin, f"expected [{RENDEZVOUS}] to be a table, found {raw!r}"))
        return
    for written, value in raw.items():
        found = RawValue(value, f"{origin}.{written}")
        name = _OF_RENDEZVOUS.get(written)
        if name is not None:
            _add(findings, name, found)
        elif isinstance(value, dict) and written not in _OF_NO_BACKEND:
            findings.by_backend[written] = found
        else:
            table = "a table with a backend's options, such as [rendezvous.c10d]"
            expected = f"expected {', '.join(_OF_RENDEZVOUS)}, or {table}"
            findings.problems.append(Problem(found.origin, f"{expected}{did_you_mean(written, _OF_RENDEZVOUS)}"))


def _add(findings: Findings, name: str, found: RawValue) -> None:
    if earlier := findings.found.get(name):
        findings.problems.append(Problem(found.origin, _once(earlier)))
    else:
        findings.found[name] = found


def _once(earlier: RawValue) -> str:
    return f"already set as {earlier.origin}; remove one of the two"
