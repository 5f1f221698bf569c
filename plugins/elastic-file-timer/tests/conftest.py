"""Servers and processes that are stopped at the end, and the log."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest
from elastic_file_timer import FileTimerServer
from elastic_testing.watchdog import ExpiryLog

from elastic_core import log

LIMIT_S = 60


@pytest.fixture
def expiry_log():
    return ExpiryLog()


@pytest.fixture
def make_server(tmp_path):
    """Makes servers, not started yet, on a pipe in the test's folder."""
    servers = []

    def make(path=tmp_path / "timers", run_id="job", **options):
        servers.append(FileTimerServer(path, run_id, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def start_process():
    """Runs Python code in processes that are killed at the end."""
    processes = []

    def start(script, *arguments, **environ):
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", script, *map(str, arguments)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ELASTIC_", "TORCHELASTIC"))}
        processes.append(
            subprocess.Popen(command, env={**kept, **environ}, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd="/")
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=LIMIT_S)


@pytest.fixture
def logged():
    """Returns the log entries so far."""
    stream = io.StringIO()
    log.configure(format="json", level="debug", stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    log.configure(level="warning")
