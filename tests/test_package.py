"""The package is cheap to import and exports all its names."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys

import pytest

import elastic_core

pytestmark = pytest.mark.integration

MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(elastic_core.__path__, "elastic_core.")
    if not info.name.endswith(("__main__", "compat.torch"))  # it changes the process; tests/e2e covers it
)
HEAVY = {
    "torch",
    "structlog",
    "pluggy",
    "psutil",
    "asyncio",
    "multiprocessing",
    "subprocess",
    "socket",
    "json",
    "tomllib",
}


def python(*argv, **environ):
    done = subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, timeout=180, env={**os.environ, **environ}
    )
    assert done.returncode == 0, done.stderr
    return done


def imported_by(*argv):
    """The modules that a separate Python process has imported."""
    lines = python("-X", "importtime", *argv).stderr.splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


def test_importing_the_package_loads_nothing_heavy():
    loaded = set(python("-c", "import sys, elastic_core; print(*sys.modules)").stdout.split())
    assert "elastic_core" in loaded
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("elastic_core.")} == set()


def test_names_are_loaded_on_first_use():
    script = "import sys, elastic_core; elastic_core.ExitCode; print('elastic_core.launch' in sys.modules)"
    assert python("-c", script).stdout == "False\n"


def test_agent_imports_neither_torch_nor_unneeded_modules(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("")
    imported = imported_by("-m", "elastic_core", "run", "--log-level=error", str(script))
    assert "elastic_core.agent.process_agent" in imported
    unwanted = {"torch", "etcd3", "grpc", "numpy", "asyncio", "multiprocessing", "structlog"}
    assert {name for name in imported if name.partition(".")[0] in unwanted} == set()


def test_help_and_version_load_almost_nothing():
    imported = imported_by("-m", "elastic_core", "--version")
    assert {name for name in imported if name.startswith("elastic_core.")} <= {
        "elastic_core.cli",
        "elastic_core.errors",
    }
    assert imported.isdisjoint({"pluggy", "structlog", "psutil", "torch"})


@pytest.mark.unit
def test_every_module_has_its_exported_names():
    modules = [importlib.import_module(name) for name in MODULES]
    promised = [(module, name) for module in modules for name in getattr(module, "__all__", ())]
    assert [found for found in promised if not hasattr(*found)] == []


@pytest.mark.unit
def test_package_exports_its_names():
    assert sorted(elastic_core.__all__) == elastic_core.__all__ == dir(elastic_core)
    assert all(getattr(elastic_core, name).__name__ == name for name in elastic_core.__all__)


@pytest.mark.unit
def test_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match="module 'elastic_core' has no attribute 'torch'"):
        elastic_core.torch  # noqa: B018
