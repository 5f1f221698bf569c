"""The HTTP endpoint passes HealthContract."""

from __future__ import annotations

from functools import partial

import pytest
from asking import ask
from elastic_testing import HealthContract, installed_health_endpoint

from elastic_core.health import Probe

pytestmark = pytest.mark.integration

PATHS = {"alive": "/livez", "ready": "/readyz", "status": "/status"}


class TestHttpHealthServer(HealthContract):
    @pytest.fixture
    def make(self):
        return partial(installed_health_endpoint, "http")

    def ask(self, server, port, what):
        answer = ask(port, PATHS[what])
        assert answer.status in (200, 503)
        return Probe(answer.status == 200, answer.text)
