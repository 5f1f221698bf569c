"""The config file: `elastic.toml`, or the table `[tool.elastic]` of pyproject.toml.

Keys are the settings' names, with dashes or underscores, and a few short ones (`backend`, `endpoint`, `run_id`). The
table `[rendezvous]` has `backend`, `endpoint` and `id`, and for each backend a table of its options
(`[rendezvous.etcd]`).
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.config.spec import Findings, Found
from elastic_core.errors import Problem
from elastic_core.text import did_you_mean, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.config.spec import Spec

_OWN = "elastic.toml"
_SHARED = "pyproject.toml"
RENDEZVOUS = "rendezvous"
_OF_NO_BACKEND = ("conf", "options", "rdzv-conf", "rdzv_conf")  # what people try first
_OF_RENDEZVOUS = {"backend": "rdzv_backend", "endpoint": "rdzv_endpoint", "id": "rdzv_id"}


class _Unreadable(Exception):
    """A config file that cannot be used; the text says why."""


def from_file(named: Found | None, cwd: Path, specs: Mapping[str, Spec]) -> Findings:
    """Read the file that `named` names (relative to `cwd`), or else the nearest one going up from `cwd`."""
    path = _locate(cwd) if named is None else cwd / Path(str(named.raw)).expanduser()
    if path is None:
        return Findings()
    try:
        table = _table(path)
    except _Unreadable as error:
        problem = Problem(str(path) if named is None else named.origin, str(error))
        return Findings(problems=[problem], config_file=path)
    return _read(path, table or {}, specs)


def _locate(cwd: Path) -> Path | None:
    for folder in (cwd, *cwd.parents):
        for path in (folder / _OWN, folder / _SHARED):
            # os.path: `Path.is_file` raises for a folder above that must not be read.
            if os.path.isfile(path) and (path.name == _OWN or _has_our_table(path)):  # noqa: PTH113
                return path
    return None


def _has_our_table(path: Path) -> bool:
    """Whether a pyproject.toml has our table. One that is broken counts if our table seems to be in it."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        # Most files do not have the word, and need neither parsing nor the import of a TOML reader.
        return "elastic" in text and _table(path) is not None
    except _Unreadable:
        return "tool.elastic" in text
    except OSError:
        return False


def _table(path: Path) -> Mapping[str, Any] | None:
    """Our settings in the file; None when it is a pyproject.toml without any."""
    document = _parse(path)
    if path.name != _SHARED:
        return document
    tool = document.get("tool", {})
    table = tool.get("elastic") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise _Unreadable(f"expected a table [tool.elastic], found {table!r}")
    return table


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise _Unreadable(f"expected a config file at {path}, found: {error.strerror}; name one that exists") from None
    except UnicodeDecodeError as error:
        raise _Unreadable(f"expected UTF-8 in {path}, found byte {error.start} that is none; save it again") from None
    # Imported here, because most runs have no file to read.
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        parsed: dict[str, Any] = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise _Unreadable(f"expected TOML in {path}, found: {error}") from None
    return parsed


def _read(path: Path, table: Mapping[str, object], specs: Mapping[str, Spec]) -> Findings:
    findings = Findings(config_file=path)
    keys = {key: spec.name for spec in specs.values() if spec.name != "config" for key in (spec.name, *spec.aliases)}
    prefix = f"{path.name}: " + ("tool.elastic." if path.name == _SHARED else "")
    for written, raw in table.items():
        key = written.replace("-", "_")
        origin = prefix + written
        if key == RENDEZVOUS:
            _read_rendezvous(findings, origin, raw)
        elif key not in keys:
            near = nearest(key, (*keys, RENDEZVOUS))
            advice = f"did you mean {near}?" if near else "elastic explain lists the settings"
            message = f"expected the name of a setting, found an unknown one; {advice}"
            findings.problems.append(Problem(origin, message))
        else:
            _add(findings, keys[key], Found(raw, origin))
    flat = findings.found.get("rdzv_conf")
    if flat is not None:
        findings.problems += [Problem(it.origin, _once(flat)) for it in findings.by_backend.values()]
    return findings


def _read_rendezvous(findings: Findings, origin: str, raw: object) -> None:
    if not isinstance(raw, dict):
        findings.problems.append(Problem(origin, f"expected a table, [{RENDEZVOUS}], found {raw!r}"))
        return
    for written, value in raw.items():
        found = Found(value, f"{origin}.{written}")
        name = _OF_RENDEZVOUS.get(written)
        if name is not None:
            _add(findings, name, found)
        elif isinstance(value, dict) and written not in _OF_NO_BACKEND:
            findings.by_backend[written] = found
        else:
            table = "a table of options with the name of a backend, as [rendezvous.c10d]"
            expected = f"expected {', '.join(_OF_RENDEZVOUS)}, or {table}"
            findings.problems.append(Problem(found.origin, f"{expected}{did_you_mean(written, _OF_RENDEZVOUS)}"))


def _add(findings: Findings, name: str, found: Found) -> None:
    if earlier := findings.found.get(name):
        findings.problems.append(Problem(found.origin, _once(earlier)))
    else:
        findings.found[name] = found


def _once(earlier: Found) -> str:
    return f"expected each setting once, found it also as {earlier.origin}; remove one"
