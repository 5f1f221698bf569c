"""Contexts for sources, and mock services on real sockets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from elastic_testing import Background

sys.path.insert(0, str(Path(__file__).parent))  # for helper modules next to the tests
sys.path.append(str(Path(__file__).parents[3] / "tests" / "e2e"))  # `running`, `job_of_nodes`

from elastic_notices import web
from elastic_notices.plugin import elastic_add_options, elastic_notices
from mocks import Service
from running import elastic, job

from elastic_core.plugin import Context

__all__ = ["elastic", "job"]


class Log:
    """Keeps the reasons of warnings."""

    def __init__(self):
        self.reasons = []

    def warning(self, event, source, reason):
        assert event == "notice source unavailable"
        assert source
        self.reasons.append(reason)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Give mock services more time than a request has, because a busy machine may stall."""
    monkeypatch.setattr(web, "LIMIT", 60.0)


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def start(log):
    """`start(name, pause, **options)`: calls the factory of the selected source."""

    def start(name, pause=lambda seconds: True, **options):
        factory = {record.name: record.factory for record in elastic_notices()}[name]
        unset = {option.name: option.default for option in elastic_add_options()}
        return factory(Context(options={**unset, "notices": name, **options}, log=log), pause)

    return start


@pytest.fixture
def following():
    """`following(iterator)`: its next value, or an error if it takes a minute."""
    return lambda iterator: Background(lambda: next(iterator)).result()


@pytest.fixture
def serve():
    """`serve(mock)`: starts an HTTP server that passes requests to the mock; returns its URL."""
    started = []

    def serve(mock):
        started.append(Service(mock))
        return started[-1].url

    yield serve
    for service in started:
        service.close()
