"""Foreign files in the current directory are not imported, however the program is started."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

CAUGHT = "raise SystemExit('caught ' + __name__)\n"


@pytest.fixture
def foreign_files(tmp_path):
    """A folder with modules named like those that elastic-core imports, and with a plugin."""
    for name in ("signal", "socket", "json", "typing", "__future__", "pluggy", "torch", "snare"):
        (tmp_path / f"{name}.py").write_text(CAUGHT)
    info = tmp_path / "snare-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: snare\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[elastic]\nsnare = snare\n")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text("import json; print(json.dumps('trained'))")
    return tmp_path


def python(folder, *words, env=None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_python_itself_imports_the_foreign_files(foreign_files):
    assert "caught socket" in python(foreign_files, "-c", "import socket").stderr


@pytest.mark.parametrize("flags", [[], ["-I"]])
def test_python_m_ignores_the_current_directory(foreign_files, flags):
    done = python(foreign_files, *flags, "-m", "elastic_core", "plugins")
    assert (done.returncode, done.stderr) == (0, "")
    assert "elastic-c10d" in done.stdout
    assert "snare" not in done.stdout


@pytest.mark.parametrize("module", [["-m", "elastic_core.compat.run"], ["-melastic_core.compat.run"]])
def test_torchruns_module_ignores_the_current_directory(foreign_files, module):
    done = python(foreign_files, *module, "scripts/train.py")
    assert (done.returncode, done.stdout) == (0, '"trained"\n'), done.stderr


def test_users_package_can_import_its_siblings(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("import elastic_core")
    (tmp_path / "own" / "__main__.py").write_text("import beside")
    (tmp_path / "beside.py").write_text("print('beside')")
    assert python(tmp_path, "-m", "own").stdout == "beside\n"


def test_job_and_torch_probe_ignore_the_current_directory(foreign_files):
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = python(foreign_files, "-m", "elastic_core", "run", "--nproc-per-node=auto", "scripts/train.py", env=environ)
    assert "caught" not in done.stderr
    assert done.stdout.splitlines() == ['"trained"'] * len(os.sched_getaffinity(0))
    doctor = python(foreign_files, "-m", "elastic_core", "doctor", "--nproc-per-node=auto")
    assert "caught" not in doctor.stdout + doctor.stderr


def test_torch_shim_ignores_the_current_directory(foreign_files):
    program = foreign_files / "scripts" / "program.py"
    program.write_text("import socket, sys; print('ran', sys.path[0])")
    done = python(foreign_files, "-m", "elastic_core.compat.torch", program)
    assert (done.returncode, done.stdout) == (0, f"ran {program.parent}\n"), done.stderr
