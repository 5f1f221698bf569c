"""Health check servers under torch's names, with an endpoint from a distribution in a folder."""

from __future__ import annotations

import pytest

from elastic_core.clock import SystemClock
from elastic_core.errors import PluginError
from elastic_core.health import HealthCheckServer, create_healthcheck_server, live, ready
from elastic_core.interfaces import health

PLUGIN = """
from elastic_core.plugin import HealthEndpointRecord, Option, hookimpl
from elastic_core.interfaces.health import HealthCheckServer

made = []


class Server(HealthCheckServer):
    def __init__(self, *given):
        self.given, self.did = given, []
        made.append(self)

    def start(self):
        self.did.append("start")

    def stop(self):
        self.did.append("stop")


@hookimpl
def elastic_health_endpoints():
    return [HealthEndpointRecord("http", "a test", Server, (Option("host", str, "127.0.0.1", "the address"),))]
"""


@pytest.fixture
def nothing_installed(monkeypatch):
    """Blocks the project's own endpoint."""
    monkeypatch.setenv("ELASTIC_DISABLE_PLUGINS", "elastic-http-health")


@pytest.fixture
def made(put_on_path, nothing_installed):
    """The servers made by an installed endpoint `http`."""
    put_on_path("folder-endpoint", {"elastic": ["endpoint = folder_endpoint"]}, {"folder_endpoint": PLUGIN})
    import folder_endpoint

    return folder_endpoint.made


@pytest.mark.parametrize("kind", [HealthCheckServer, create_healthcheck_server])
def test_installed_endpoint_is_used(kind, made):
    server = kind(lambda: 12.5, 8080, 60)
    assert isinstance(server, HealthCheckServer)
    assert isinstance(server, health.HealthCheckServer)
    server.stop()
    server.start()
    server.stop()
    (endpoint,) = made
    context, view, *rest = endpoint.given
    assert (rest, context.options) == ([8080, 60], {"host": "127.0.0.1"})
    assert endpoint.did[-2:] == ["start", "stop"]
    assert (view.alive_at(), view.watchdog_fault()) == (12.5, "")


def test_view_of_a_program_has_only_liveness(made):
    now = SystemClock().timestamp()
    seen = [now]
    create_healthcheck_server(lambda: seen[0], 8080, 60)
    (_, view, *_) = made[0].given
    assert live(view.alive_at(), now, 60).ok
    assert ready(view.status()) == (True, "running")
    view.subscribe(lambda: None)()
    seen[0] = now - 61
    assert not live(view.alive_at(), now, 60).ok


def test_missing_endpoint_raises_plugin_error(nothing_installed):
    with pytest.raises(PluginError, match="http"):
        create_healthcheck_server(lambda: 0.0, 8080, 60)
    server = HealthCheckServer(lambda: 0.0, 8080, 60)
    with pytest.raises(PluginError, match="http"):
        server.start()
    server.stop()


def test_server_can_be_subclassed(nothing_installed):
    class Own(HealthCheckServer):
        def start(self):
            self.started = True

        def stop(self):
            self.started = False

    server = Own(lambda: 0.0, 8080, 60)
    server.start()
    assert server.started
    server.stop()
    assert not server.started
