from __future__ import annotations

import pytest
from elastic_c10d.endpoint import Endpoint, parse_endpoint

from elastic_core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node1", "node1", 29400),
        ("node1:1234", "node1", 1234),
        (" node1.example.org:1234 ", "node1.example.org", 1234),
        ("10.0.0.1", "10.0.0.1", 29400),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("fe80::1", "fe80::1", 29400),
        ("::1", "::1", 29400),
        ("[::1]", "::1", 29400),
        ("[fe80::1]:1234", "fe80::1", 1234),
        ("[fe80::1%eth0]:1234", "fe80::1%eth0", 1234),
        ("under_score:1", "under_score", 1),
    ],
)
def test_endpoints_are_parsed_and_printed(text, host, port):
    endpoint = parse_endpoint(text)
    assert (endpoint.host, endpoint.port) == (host, port)
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text",
    ["", ":", ":1234", "node1:", "node1:http", "node1:0", "node1:65536", "node1:-1", "node1:1 2", "node 1", "[::1",
     "[::1]x", "[node1]:1234", "[10.0.0.1]:1", "[]", "a:b:c", "fe80::1::2", "tcp://node1:1", "a:1,b:2", "node1:١٢"],
)  # fmt: skip
def test_invalid_endpoints_are_refused(text):
    with pytest.raises(ConfigurationError) as caught:
        parse_endpoint(text)
    assert str(caught.value).startswith("--rdzv-endpoint: expected one endpoint host[:port], found ")
    assert repr(text.strip())[1:-1] in str(caught.value)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("node1", False),
        ("10.0.0.1", False),
    ],
)
def test_loopback_hosts_are_recognized(host, loopback):
    assert Endpoint(host).is_loopback is loopback
