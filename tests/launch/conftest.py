"""Scripts to launch, and signal handlers as they were."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helpers lie beside the tests that use them

from launching import HANDLED


@pytest.fixture
def script(tmp_path):
    """A function that writes a script and returns its path."""

    def script(source):
        path = tmp_path / "script.py"
        path.write_text(source)
        return str(path)

    return script


@pytest.fixture(autouse=True)
def same_handlers():
    """No launch may leave a signal handler behind."""
    before = [signal.getsignal(signum) for signum in HANDLED]
    yield
    assert [signal.getsignal(signum) for signum in HANDLED] == before
