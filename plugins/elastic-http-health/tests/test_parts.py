"""Pure functions: allowed hosts, tokens, requests, and totals."""

from __future__ import annotations

import pytest
from elastic_http_health.messages import Exchange, Request, Response
from elastic_http_health.metrics import Totals
from elastic_http_health.options import Limits
from elastic_http_health.router import may_see, means_us

from elastic_core.interfaces.health import AgentPhase, AgentStatus, Recovery, RoundStatus

LOOPBACK = ["localhost", "*.localhost"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True), ("LOCALHOST:8080", True), ("127.0.0.1:8080", True), ("127.4.0.1", True),
        ("[::1]:8080", True), ("[::1]", True), ("node.localhost:1", True), ("evil.example:8080", False),
        ("evil.example", False), ("10.0.0.1", False), ("", False), ("localhost.evil.example", False), ("[::2]", False),
        ("127.0.0.1.evil.example", False), ("[::ffff:127.0.0.1]", True), ("[::ffff:10.0.0.1]", False),
        ("0.0.0.0", False), ("[::]", False), ("node7", False),
    ],
)  # fmt: skip
def test_loopback_server_accepts_only_loopback_hosts(host, expected):
    assert means_us({"host": host}, LOOPBACK, True) is expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.0.0.1:8080", True), ("203.0.113.7", True), ("[fe80::1%eth0]:8080", True), ("localhost", True),
        ("NODE7:8080", True), ("node7.", True), ("a.cluster.example", True), ("node8", False), ("", False),
        ("cluster.example", False), ("a.cluster.example.evil.example", False), ("evil.example:8080", False),
        ("10.0.0.1.evil.example", False), ("0x7f000001", False), ("[evil.example]", False), ("xn--nde7-5qa", False),
    ],
)  # fmt: skip
def test_public_server_accepts_addresses_and_allowed_names(host, expected):
    assert means_us({"host": host}, [*LOOPBACK, "node7", "*.cluster.example"], False) is expected


def test_star_allows_every_host():
    assert means_us({"host": "evil.example:8080"}, ["*"], True)


@pytest.mark.parametrize(
    ("header", "expected"),
    [("Bearer secret", True), ("bearer  secret ", True), ("Bearer secrets", False), ("Basic secret", False),
     ("secret", False), ("", False), ("Bearer \xe9", False)],
)  # fmt: skip
def test_token_is_compared_with_the_header(header, expected):
    assert may_see("secret", {"authorization": header}) is expected
    assert may_see(None, {"authorization": header})


def exchange():
    return Exchange(Limits.head_bytes)


def test_request_is_parsed():
    found = exchange().receive(b"GET /a%20b/?verbose&x=1%2C2 HTTP/1.1\r\nHost: h\r\nX-A: b\r\n\r\n")
    assert found == Request("GET", "/a b/", {"verbose": "", "x": "1,2"}, {"host": "h", "x-a": "b"})


def test_request_in_pieces_is_parsed():
    one = exchange()
    request = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    found = [one.receive(request[i : i + 1]) for i in range(len(request))]
    assert found[:-1] == [None] * (len(request) - 1)
    assert found[-1].path == "/"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n", 400),  # TLS
        (b"GET /\r\n\r\n", 400), (b"GET / HTTP/1.1\r\n\r\n", 400), (b"\r\n\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 200),
        (b"GET / HTTP/9.9\r\n\r\n", 505), (b"GET / HTTP/x\r\nHost: a\r\n\r\n", 400),
        (b"G\x00T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 6\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /?" + b"a&" * 40 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /" + b"a" * 9000, 431), (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 2000, 431),
    ],
)  # fmt: skip
def test_malformed_request_is_refused(data, status):
    one = exchange()
    found = one.receive(data)
    assert (found.status if isinstance(found, Response) else 200) == status
    if isinstance(found, Response):
        assert one.send(found).startswith(b"HTTP/1.1 %d " % status)


def status(**fields):
    return AgentStatus(1, "job", "node", "role", AgentPhase.RUNNING, 0.0, **fields)


@pytest.mark.parametrize("number", [1, 3])
def test_totals_count_rounds_after_the_store_lost_data(number):
    rounds = [RoundStatus(3, 1, 0, 1, 1.0, rendezvous=0.5), RoundStatus(number, 1, 0, 1, 2.0, rendezvous=0.25)]
    recoveries = [Recovery(3, "failure", "", 1.0, 0, 0, 0, 0), Recovery(number, "failure", "", 2.0, 0, 0, 0, 0)]
    totals = Totals()
    for known in (1, 2, 2):
        totals.note(status(rounds=tuple(rounds[:known]), recoveries=tuple(recoveries[:known])))
    assert totals.rendezvous.total == 0.75
    assert totals.recoveries["failure", "start"].buckets()[-1] == ("+Inf", 2)


def test_totals_count_each_round_and_each_recovery_once():
    totals, rounds, recoveries = Totals(), [], []
    for number in range(1, 6):
        rounds.append(RoundStatus(number, 1, 0, 1, 0.0, rendezvous=0.5))
        if number > 1:
            recoveries.append(Recovery(number, "hang" if number == 3 else "failure", "", 0.0, 0.02, 0.5, 2.0, 5000.0))
        totals.note(status(rounds=tuple(rounds[-2:]), recoveries=tuple(recoveries[-2:])))
        totals.note(status(rounds=tuple(rounds[-2:]), recoveries=tuple(recoveries[-2:])))
    assert totals.rendezvous.buckets()[-1] == ("+Inf", 5)
    assert totals.rendezvous.total == 2.5
    start = totals.recoveries["failure", "start"]
    assert (start.buckets()[-2], start.buckets()[-1], start.total) == (("1000.0", 0), ("+Inf", 3), 15000.0)
    detect = dict(totals.recoveries["hang", "detect"].buckets())
    assert (detect["0.01"], detect["0.03"], detect["+Inf"]) == (0, 1, 1)
