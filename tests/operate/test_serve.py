"""`elastic serve`: running a store server until a signal arrives."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from elastic_core.compose.plan import plan_of
from elastic_core.config import Reading, Settings
from elastic_core.errors import ConfigurationError
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.operate.serve import serve, serving_endpoint


class Server:
    """Sends itself a signal as soon as it has started."""

    def __init__(self, end=signal.SIGTERM):
        self.done = []
        self._end = end

    endpoint = "here:1"

    def start(self):
        self.done.append("start")
        os.kill(os.getpid(), self._end)

    def stop(self):
        self.done.append("stop")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_server(number):
    before = signal.getsignal(number)
    server = Server(number)
    serve(server)
    assert server.done == ["start", "stop"]
    assert signal.getsignal(number) is before


class AskedAtLine(Server):
    """Sends itself SIGTERM after this many more lines of Python, or after 5 s if it blocks before that."""

    def __init__(self, lines):
        super().__init__()
        self.left, self.waits = lines, False
        self._late = threading.Timer(5.0, self._ask)

    def _ask(self):
        self.waits = True
        os.kill(os.getpid(), signal.SIGTERM)

    def start(self):
        self._late.start()
        self._tracer = sys.gettrace()
        sys._getframe(1).f_trace = self._step
        sys.settrace(self._step)

    def _step(self, frame, event, argument):
        self.left -= event == "line"
        if self.left < 0:
            sys.settrace(None)
            os.kill(os.getpid(), signal.SIGTERM)
        return None if self.left < 0 else self._step

    def stop(self):
        sys.settrace(self._tracer)
        self._late.cancel()
        self._late.join()
        super().stop()


@pytest.fixture
def terminable():
    """Ignores SIGTERM, so that a second one does not end the test run."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("terminable")
def test_signal_at_any_moment_ends_the_server():
    """Even just before it starts to wait."""
    ended = []
    for lines in range(1000):
        server = AskedAtLine(lines)
        serve(server)
        ended += server.done
        if server.waits:
            break
    assert ended == ["stop"] * (lines + 1)
    assert lines > 5  # at least this many lines run before it waits


def test_failed_start_restores_signal_handlers():
    class Broken(Server):
        def start(self):
            raise ConfigurationError()

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ConfigurationError):
        serve(Broken())
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [("29400", "0.0.0.0:29400"), (":7", "0.0.0.0:7"), ("h:7", "h:7"), ("[::1]:7", "[::1]:7"), ("host", "host")],
)
def test_port_alone_means_all_addresses(text, endpoint):
    assert serving_endpoint(text) == endpoint


def test_backend_without_a_server_is_an_error(plugins):
    asked = []
    able = RendezvousBackendRecord("toy", "a test", print, serve=lambda *given: asked.append(given) or Server())
    manager = plugins(able, RendezvousBackendRecord("homeless", "a test", print))
    assert plan_of(Reading(Settings(rdzv_backend="toy")), manager).store_server("h:1", 7).endpoint == "here:1"
    [(context, *given)] = asked
    assert given == ["h:1", 7]
    assert context.settings["rdzv_backend"] == "toy"
    homeless = plan_of(Reading(Settings(rdzv_backend="homeless")), manager)
    with pytest.raises(ConfigurationError, match=r"'homeless' has no store to serve; backends that have one: toy"):
        homeless.store_server("h:1", 7)
