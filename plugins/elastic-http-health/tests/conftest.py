"""Endpoints on free ports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for helper modules next to the tests
sys.path.append(str(Path(__file__).parents[3] / "tests" / "e2e"))  # `running`, `job_of_nodes`

from elastic_http_health.options import Options
from elastic_http_health.server import HttpHealthServer
from elastic_testing import FakeAgentView
from running import elastic, job, read_fifo

__all__ = ["elastic", "job", "read_fifo"]


@pytest.fixture
def view():
    return FakeAgentView()


@pytest.fixture
def serve(view):
    """`serve(options)`: starts an endpoint that serves `view`."""
    started = []

    def start(
        options: Options | None = None, agent: Any = None, timeout: float = 30.0, port: int = 0
    ) -> HttpHealthServer:
        server = HttpHealthServer(agent or view, port, timeout, options)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()
