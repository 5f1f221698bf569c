"""The source `http`, and what hostile services can do to all sources that use HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest
from elastic_notices import web
from elastic_notices.url import decode
from elastic_notices.web import Answer
from elastic_testing import NoticeContract
from mocks import Fixed

from elastic_core.plugin import ConfigurationError, Notice

NOW = 1_700_000_000.0
REQUESTS = "the notice URL requests it"


@pytest.mark.parametrize(
    ("answer", "notice"),
    [
        ({}, Notice(REQUESTS)),
        ({"at": None, "reason": "rack 7."}, Notice("rack 7")),
        ({"at": NOW + 60, "reason": "rack 7"}, Notice("rack 7", NOW + 60)),
        ({"at": "2023-11-14T22:14:20Z"}, Notice(REQUESTS, NOW + 60)),
        ({"at": NOW - 5, "more": 1}, Notice(REQUESTS)),
        ({"reason": "\ud800"}, Notice("\\ud800")),
    ],
)
def test_answer_is_time_and_reason(answer, notice):
    assert decode(Answer(200, json.dumps(answer)), NOW) == notice


@pytest.mark.parametrize(
    "text",
    [
        *("", "no JSON", "[]", "null", "[" * 60_000, '{"reason": 3}', '{"at": true}', '{"at": []}', '{"at": "soon"}'),
        *('{"at": NaN}', '{"at": 1e999}', '{"at": ' + "9" * 4000 + "}", '{"at": ' + "9" * 6000 + "}", '{"at": 17}'),
    ],
)
def test_unknown_answer_is_an_error(text):
    with pytest.raises(ValueError, match=r"\w"):
        decode(Answer(200, text), NOW)


def test_status_decides():
    assert decode(Answer(204), NOW) is None
    assert decode(Answer(404, "{}"), NOW) is None
    for status in (201, 302, 401, 500):
        with pytest.raises(ValueError, match=str(status)):
            decode(Answer(status, "{}"), NOW)


@pytest.mark.integration
class TestUrl(NoticeContract):
    @pytest.fixture
    def mock(self):
        return Fixed(404)

    @pytest.fixture
    def source(self, start, serve, mock):
        url = f"{serve(mock)}/node7"
        return lambda pause: start("http", pause, notice_url=url)

    @pytest.fixture
    def announce(self, mock):
        return lambda: vars(mock).update(status=200, text='{"reason": "rack 7 is serviced."}')

    @pytest.fixture
    def withdraw(self, mock):
        return lambda: vars(mock).update(status=204, text="")


@pytest.fixture
def polls(start):
    """`polls(url)`: the notices of three polls."""

    def polls(url):
        left = iter([True] * 2)
        return list(start("http", lambda seconds: next(left, False), notice_url=url))

    return polls


@pytest.mark.integration
def test_url_is_requested_unchanged(polls, serve):
    mock = Fixed(204)
    assert polls(f"{serve(mock)}/node7/?token=5/") == []
    assert (mock.path, mock.query) == ("/node7/", {"token": "5/"})


@pytest.mark.integration
def test_redirect_is_not_followed(polls, serve, log):
    target = Fixed(200, "{}")
    assert polls(serve(Fixed(302, "", Location=serve(target)))) == []
    assert target.asked == 0
    assert log.reasons == ["the service returned the HTTP status 302; polling continues"]


@pytest.mark.integration
def test_proxy_variables_are_ignored(polls, serve, monkeypatch):
    proxy = Fixed(200, "{}")
    monkeypatch.setenv("http_proxy", serve(proxy))
    assert polls(serve(Fixed(404))) == []
    assert proxy.asked == 0


@pytest.mark.integration
def test_long_answer_is_refused(polls, serve, log):
    assert polls(serve(Fixed(200, "{" + " " * 70_000 + "}"))) == []
    (reason,) = log.reasons
    assert "longer than 65536 bytes" in reason


@pytest.fixture
def raw():
    """`raw(talk)`: a server that calls `talk(connection)` for each connection; returns its URL."""
    opened = []

    def serve(talk, connection):
        with contextlib.suppress(OSError):  # at the end of the test, another thread closes the connection
            talk(connection)

    def raw(talk):
        server = socket.create_server(("127.0.0.1", 0))
        opened.append(server)

        def accept():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                opened.append(connection)
                threading.Thread(target=serve, args=(talk, connection), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return f"http://user:secret@127.0.0.1:{server.getsockname()[1]}/?token=secret"

    yield raw
    for each in opened:
        each.close()


def drip(connection):
    """Send one byte after another, so that no timeout of a socket ends."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{"
    connection.sendall(head[:20])
    while True:
        connection.sendall(b"X")
        time.sleep(0.05)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("talk", "said"),
    [
        (lambda connection: connection.close(), "does not answer"),
        (lambda connection: (connection.recv(9999), connection.close()), "does not answer"),
        (lambda connection: connection.recv(9999), "not answer"),
        (lambda connection: (connection.recv(9999), connection.sendall(b"no HTTP\r\n\r\n")), "does not answer"),
        (
            lambda connection: (
                connection.recv(9999),
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{}"),
                connection.shutdown(socket.SHUT_RDWR),
            ),
            "does not answer",
        ),
        (drip, "did not answer within 0.3 s"),
    ],
    ids=["closes", "closes after the request", "is silent", "speaks no HTTP", "closes early", "drips"],
)
def test_hostile_server_is_logged_once(talk, said, raw, polls, log, monkeypatch):
    monkeypatch.setattr(web, "LIMIT", 0.3)
    assert polls(raw(talk)) == []
    (reason,) = log.reasons
    assert said in reason
    assert "secret" not in reason


@pytest.mark.integration
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_response_that_trickles_does_not_hold_up_later_polls(version, raw, start, monkeypatch):
    monkeypatch.setattr(web, "LIMIT", 0.3)
    head = f"HTTP/{version} 200 OK\r\nContent-Length: 100000\r\n\r\n{{".encode()
    answers = iter([head])

    def talk(connection):
        connection.recv(9999)
        first = next(answers, None)
        if first is None:
            connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{"reason": "go"}')
        while first is not None:
            connection.sendall(first)
            first = b"X"
            time.sleep(0.05)

    def pause(seconds):
        monkeypatch.setattr(web, "LIMIT", 60.0)  # for the second poll, because a busy machine may stall
        return next(left, False)

    left = iter([True])
    (notice,) = start("http", pause, notice_url=raw(talk))
    assert notice.reason == "go"


@pytest.mark.parametrize("url", ["http://me:secret@[zz]/", "ftp://me:secret@node0/?secret"])
def test_secrets_in_a_url_are_not_shown(url, start):
    with pytest.raises(ConfigurationError) as raised:
        start("http", notice_url=url)
    assert "secret" not in str(raised.value)


def answer_once(connection):
    """Close the connection at its second request, as servers do if the request arrives when the connection expires."""
    connection.recv(9999)
    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
    connection.recv(9999)
    connection.close()


@pytest.mark.integration
def test_connection_that_expires_between_polls_loses_no_poll(raw, polls, log):
    assert polls(raw(answer_once)) == []
    assert log.reasons == []


@pytest.mark.integration
def test_unreachable_service_is_logged_once(polls, quiet_port, log):
    assert polls(f"http://127.0.0.1:{quiet_port}/") == []
    (reason,) = log.reasons
    assert "does not answer: [Errno 111] Connection refused; polling continues" in reason


@pytest.mark.integration
def test_failure_after_a_success_is_logged_again(start, serve, log):
    mock = Fixed(500)
    statuses = iter([500, 404, 500, 500])

    def pause(seconds):
        mock.status = next(statuses, None)
        return mock.status is not None

    assert list(start("http", pause, notice_url=serve(mock))) == []
    assert len(log.reasons) == 2


@pytest.mark.parametrize("url", ["node0:80", "ftp://node0/", "http://", "http://[zz]/", "http://node0:99999/"])
def test_other_url_is_a_configuration_error(start, url):
    for option, name in (("notice_url", "http"), ("notice_endpoint", "azure")):
        with pytest.raises(ConfigurationError, match=f"--{option.replace('_', '-')}: expected a URL"):
            start(name, **{option: url})


def test_source_without_its_url_is_a_configuration_error(start):
    with pytest.raises(ConfigurationError, match="requires --notice-url"):
        start("http")
