"""The GPU suite's command: in a rehearsal on the processor, without a GPU, and in a checkout that is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.torch]
ROOT = Path(__file__).parents[2]

PLUGINS = """
import subprocess, sys
from pathlib import Path
from benchmarks.gpu.checkout import MissingPackages, usable
try:
    with usable(Path(sys.argv[1])):
        sys.exit(subprocess.run([sys.executable, "-S", "-m", "elastic_core", "plugins", "--json"]).returncode)
except MissingPackages as error:
    sys.exit(str(error))
"""


def suite(*words, folder):
    """Run the suite. Returns its exit code, its output, and the parts of its JSON."""
    path = folder / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", *words, f"--json={path}"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    return done.returncode, done.stdout + done.stderr, json.loads(path.read_text())["parts"]


@pytest.mark.nightly
def test_rehearsal_of_two_parts_passes_and_is_marked(tmp_path):
    code, output, parts = suite("count", "heal", "--device=cpu", "--tries=1", folder=tmp_path)
    assert (code, {name: one["outcome"] for name, one in parts.items()}) == (
        0,
        {"count": "passed", "heal": "passed"},
    ), output
    assert all(one["rehearsal"] and one["device"] == "cpu" and one["machine"]["gpus"] == [] for one in parts.values())
    started, *_ = parts["count"]["report"]["rows"]
    assert started["values"] == {"elastic": len(os.sched_getaffinity(0))}
    healed, *_ = parts["heal"]["report"]["rows"]
    assert healed["met"] and healed["values"]["cold"] > 0 and healed["values"]["warm"] > 0


def test_gpu_parts_are_skipped_without_a_gpu(tmp_path):
    code, output, parts = suite("heal", "count", folder=tmp_path)
    assert code == 0
    assert "heal: skipped: no CUDA device" in output and "count: skipped: no CUDA device" in output
    assert all(one["report"] is None and not one["rehearsal"] for one in parts.values())


def test_other_parts_run_after_one_timed_out(tmp_path):
    code, output, parts = suite("hangs", "shared", "--device=cpu", "--warmup=200", "--limit=1.5", folder=tmp_path)
    assert code == 1, output
    assert {name: one["outcome"] for name, one in parts.items()} == {"hangs": "timed out", "shared": "timed out"}


def wheel_of(name, folder):
    """Make a wheel of an installed package."""
    with zipfile.ZipFile(folder / f"{name}-{metadata.version(name)}-py3-none-any.whl", "w") as wheel:
        for file in metadata.files(name) or ():
            if file.parts[0] == name:
                wheel.write(file.locate(), str(file))


def plugins(wheels):
    """Run `elastic plugins` in the checkout with a Python that has no installed packages."""
    command = [sys.executable, "-S", "-c", PLUGINS, str(wheels)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_bare_checkout_finds_its_plugins(tmp_path):
    for name in ("pluggy", "psutil", "structlog"):
        wheel_of(name, tmp_path)
    done = plugins(tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {one["distribution"] for one in found["plugins"]} >= {"elastic-core", "elastic-c10d", "elastic-sqlite"}
    assert found["failed"] == []


def test_missing_packages_are_reported_with_the_remedy(tmp_path):
    done = plugins(tmp_path)
    assert done.returncode == 1
    assert "pip download --no-deps -d wheels pluggy psutil structlog" in done.stderr
