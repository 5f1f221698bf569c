"""Fixtures that write scripts to launch and check the signal handlers."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # makes the helper modules in this folder importable

from launching import HANDLED


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a script and returns its path."""

    def script(source):
        path = tmp_path / "script.py"
        path.write_text(source)
        return str(path)

    return script


@pytest.fixture(autouse=True)
def same_handlers():
    """Check that no launch leaves a signal handler behind."""
    before = [signal.getsignal(signum) for signum in HANDLED]
    yield
    assert [signal.getsignal(signum) for signum in HANDLED] == before
