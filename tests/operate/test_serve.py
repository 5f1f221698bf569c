"""`elastic serve` in a separate process."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from elastic_core.errors import ConfigurationError
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.operate.serve import serve, server_of, serving_endpoint


class Server:
    """Asked to end as soon as it has started."""

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
def test_it_serves_until_it_is_asked_to_end(number):
    before = signal.getsignal(number)
    server = Server(number)
    serve(server)
    assert server.done == ["start", "stop"]
    assert signal.getsignal(number) is before


class AskedAtLine(Server):
    """Asked to end just before so many more lines of Python have run; after a while, if it waits before that."""

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
    """What asks twice ends nothing else."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("terminable")
def test_it_may_be_asked_at_any_moment():
    """Also just when it begins to wait for that."""
    ended = []
    for lines in range(1000):
        server = AskedAtLine(lines)
        serve(server)
        ended += server.done
        if server.waits:
            break
    assert ended == ["stop"] * (lines + 1)
    assert lines > 5  # at least so many there are until it waits


def test_a_server_that_cannot_start():
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
def test_a_port_alone_is_served_everywhere(text, endpoint):
    assert serving_endpoint(text) == endpoint


def test_which_backend_can_be_served(plugins):
    asked = []
    able = RendezvousBackendRecord("toy", "a test", print, serve=lambda *given: asked.append(given) or Server())
    manager = plugins(able, RendezvousBackendRecord("homeless", "a test", print))
    assert server_of("toy", "h:1", 7, manager).endpoint == "here:1"
    assert asked == [("h:1", 7)]
    with pytest.raises(ConfigurationError, match=r"'homeless' has no store to serve; these backends do: toy"):
        server_of("homeless", "h:1", 7, manager)
