"""Unchanged programs for torch's classes, run with torch's classes and with elastic-core's in their place."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from elastic_core.compat.names import MODULES
from elastic_core.support.sockets import PortReservation

PROGRAMS = sorted(Path(__file__).parent.glob("programs/*.py"))
OURS = ("-m", "elastic_core.compat.torch")

pytestmark = pytest.mark.torch


def output(program, folder, *before):
    reserved = PortReservation()
    reserved.release()
    command = [sys.executable, *before, program, str(reserved.port), folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program_output_is_the_same_with_elastic(program, tmp_path):
    assert output(program, tmp_path, *OURS) == program.with_suffix(".txt").read_text().splitlines()


@pytest.mark.nightly
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program_output_with_torch_is_the_recorded_one(program, tmp_path):
    assert output(program, tmp_path) == program.with_suffix(".txt").read_text().splitlines()


def run(program, text, *before, **changes):
    program.write_text(text)
    return subprocess.run([sys.executable, *before, program], capture_output=True, text=True, timeout=300)


def test_imported_shim_replaces_classes_and_refuses_others(tmp_path):
    done = run(
        tmp_path / "program.py",
        "import elastic_core.compat.torch\n"
        "from torch.distributed.launcher import LaunchConfig\n"
        "from torch.distributed.elastic.agent.server.api import *\n"
        "from torch.distributed.elastic.utils.distributed import get_free_port\n"
        "print(LaunchConfig.__module__, WorkerSpec.__module__, get_free_port() > 0)\n"
        "from torch.distributed.elastic.metrics import publish_metric\n",
    )
    assert done.stdout.split() == ["elastic_core.launch", "elastic_core.agent.interface", "True"], done.stderr
    assert "ImportError: cannot import name 'publish_metric'" in done.stderr


def _imported_by_torch():
    """The names that torch itself imports from modules that we replace, outside those modules' packages."""
    [root] = find_spec("torch").submodule_search_locations
    ours = tuple(Path(root, "distributed", name) for name in ("elastic", "launcher", "run.py"))
    for path in Path(root).rglob("*.py"):
        text = "" if any(path.is_relative_to(own) for own in ours) else path.read_text()
        if not any(module in text for module in MODULES):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module in MODULES:
                yield from ((node.module, alias.name) for alias in node.names)


def test_shim_has_every_name_that_torch_itself_imports(tmp_path):
    names = sorted(set(_imported_by_torch()))
    assert ("torch.distributed.elastic.agent.server.api", "_get_fq_hostname") in names
    lines = [f"from {module} import {name}\nprint({name})" for module, name in names]
    done = run(tmp_path / "program.py", "\n".join([*lines, "import torch.distributed.checkpoint"]), *OURS)
    assert done.returncode == 0, done.stderr


def test_importing_the_shim_after_torch_is_an_error(tmp_path):
    done = run(tmp_path / "program.py", "import torch.distributed.launcher\nimport elastic_core.compat.torch\n")
    assert "RuntimeError: elastic_core.compat.torch must be imported before torch" in done.stderr


def test_shim_without_a_program_prints_usage():
    done = subprocess.run([sys.executable, *OURS], capture_output=True, text=True, timeout=180)
    assert done.returncode == 1
    assert done.stderr.startswith("usage: python -m elastic_core.compat.torch PROGRAM [ARGUMENTS]")
