"""Nightly tests can be set up. No change runs them, so a missing fixture would go unnoticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.integration
def test_nightly_tests_find_their_fixtures():
    options = f"-c {ROOT}/pyproject.toml --rootdir {ROOT} -p no:cacheprovider --setup-plan -m nightly"
    command = [sys.executable, "-m", "pytest", *options.split(), ROOT / "tests", ROOT / "plugins"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    planned = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500)
    assert planned.returncode == 0, planned.stdout[-5000:]
