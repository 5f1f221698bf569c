"""Scripts for the command line; the log is reset after each test."""

from __future__ import annotations

import pytest

from elastic_core import log


@pytest.fixture(autouse=True)
def quiet_afterwards():
    """Reset the process's log, which `run` configures."""
    yield
    log.configure(level="warning")


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A function that writes a script and returns its path; no config file is in the current folder."""
    monkeypatch.chdir(tmp_path)

    def script(source):
        path = tmp_path / "script.py"
        path.write_text(source)
        return str(path)

    return script
