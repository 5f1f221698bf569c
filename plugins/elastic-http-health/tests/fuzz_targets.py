"""Fuzz targets of elastic-http-health. See `tests/fuzz/targets.py`."""

from __future__ import annotations

from elastic_http_health.messages import Exchange, Response
from elastic_http_health.metrics import Counts
from elastic_http_health.options import Limits, Options, read_options
from elastic_http_health.router import Router
from elastic_testing import FakeAgentView
from fuzz.targets import target, written

from elastic_core.errors import ConfigurationError

_ROUTER = Router(FakeAgentView(), 10.0, Options(token="secret"), ["localhost"], True, Counts())


@target(
    (),
    b"GET /status?x=1 HTTP/1.1\r\nHost: localhost:80\r\nAuthorization: Bearer secret\r\n\r\n",
    b"GET /changes?after=0&wait=1e3 HTTP/1.0\r\nAuthorization: Bearer secret\r\n\r\n",
    b"HEAD /livez?verbose HTTP/1.1\r\nHost: [::1]\r\n\r\nrest",
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 7\r\n\r\n1234567",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"A" * 20_000,
)
def http_head(data):
    """A request to the health endpoint, in two pieces."""
    exchange, found = Exchange(Limits().head_bytes), None
    for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
        found = found or (exchange.receive(piece) if piece else None)
    if found is not None:
        answer = found if isinstance(found, Response) else _ROUTER.answer(found)
        sent = exchange.send(answer) if isinstance(answer, Response) else b"HTTP/1.1 later"
        assert sent.startswith(b"HTTP/1.1 ")
        assert not sent.startswith(b"HTTP/1.1 500"), sent


@target((ConfigurationError,), b"secret\n", b"\xff", b"x" * 2000)
def token_file(data):
    path = written("token", data)
    found = read_options({"host": "127.0.0.1", "token_file": str(path), "connections": 1, "rate": 1.0}).bearer()
    assert found.isprintable()
