"""Endpoints, certificates and users from the options, and reports of all problems together."""

from __future__ import annotations

import os
import re
import sys
from unittest.mock import patch

import pytest
from elastic_etcd.client.channel import Security
from elastic_etcd.client.members import Login
from elastic_etcd.parameters import Endpoint, EtcdParameters, parse_endpoints, read_parameters
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.errors import ConfigurationError, PluginError
from elastic_core.hooks.manager import PluginManager
from elastic_core.hooks.records import Context
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.plugin import RendezvousBackendRecord


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1", [Endpoint("node1")]),
        ("node1:1234", [Endpoint("node1", 1234)]),
        ("a, b:1 ,c", [Endpoint("a"), Endpoint("b", 1), Endpoint("c")]),
        ("http://a:1,b", [Endpoint("a", 1, "http"), Endpoint("b")]),
        ("HTTPS://a/", [Endpoint("a", 2379, "https")]),
        ("fe80::1", [Endpoint("fe80::1")]),
        ("[fe80::1%eth0]:1234,[::1]", [Endpoint("fe80::1%eth0", 1234), Endpoint("::1")]),
        ("https://[::1]:65535", [Endpoint("::1", 65535, "https")]),
        ("a,b,a:2379", [Endpoint("a"), Endpoint("b")]),
    ],
)
def test_endpoints_are_parsed(text, expected):
    assert parse_endpoints(text) == tuple(expected)


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,", ":1", "a:", "a:0", "a:65536", "a:-1", "a:1 2", "a b", "[::1", "[::1]x", "[a]:1", "[]", "a:b:c",
     "tcp://a:1", "http://", "://a", "http://a/path", "a@b", "a:١٢", "unix:///tmp/socket"],
)  # fmt: skip
def test_invalid_endpoints_are_refused(text):
    with pytest.raises(ConfigurationError) as caught:
        parse_endpoints(text)
    assert str(caught.value).startswith("--rdzv-endpoint: expected endpoints host[:port][,host[:port]...], found ")


def test_all_invalid_endpoints_are_reported_together():
    with pytest.raises(ConfigurationError) as caught:
        parse_endpoints("http://a,b:0,https://c,d e")
    assert [problem.message[-40:] for problem in caught.value.problems]
    assert len(caught.value.problems) == 3
    assert "'b:0'" in str(caught.value)
    assert "http and https" in str(caught.value)


def read(endpoint="a", environment=None, **options):
    """Like a first read: no password is remembered from an earlier one."""
    with patch.dict(os.environ, environment or {}):
        return read_parameters(endpoint, options, removed={})


def problems(*args, **options):
    with pytest.raises(ConfigurationError) as caught:
        read(*args, **options)
    return str(caught.value)


def test_unset_options_have_defaults():
    assert read() == EtcdParameters((Endpoint("a"),), None, None, "elastic", 5.0, None)
    assert read(user=None, prefix=None, read_timeout=None, ca_cert="") == read()
    assert read("a,[::1]:1").addresses == ("a:2379", "[::1]:1")


@pytest.mark.parametrize(
    ("endpoint", "options", "over_tls"),
    [
        ("a", {"protocol": "http"}, False),
        ("a", {"protocol": "HTTPS"}, True),
        ("https://a", {}, True),
        ("http://a", {"protocol": "http"}, False),
        ("https://a,b", {"protocol": "https"}, True),
        ("a", {"ca_cert": "ca.pem"}, True),
        ("a", {"ssl_cert": "cert.pem", "ssl_cert_key": "key.pem"}, True),
    ],
)
def test_protocol_follows_endpoint_and_options(endpoint, options, over_tls):
    parameters = read(endpoint, **options)
    assert (parameters.security is not None) is over_tls


def test_certificate_over_plain_text_is_refused():
    assert "protocol: ca_cert requires https" in problems("http://a", ca_cert="ca.pem")
    assert "protocol: ssl_cert requires https" in problems(protocol="http", ssl_cert="cert.pem", ssl_cert_key="key.pem")


def test_password_is_read_from_a_variable():
    parameters = read("https://a", user="me", environment={"ELASTIC_ETCD_PASSWORD": "secret"})
    assert parameters.login == Login("me", "secret")
    assert read("::1", user="me", password_env="MINE", environment={"MINE": "other"}).login.password == "other"
    written = read("localhost", user="me", password="written", environment={"ELASTIC_ETCD_PASSWORD": "secret"})
    assert written.login.password == "written"
    assert read(environment={"ELASTIC_ETCD_PASSWORD": "secret"}).login is None


def test_password_variable_is_removed_but_can_be_read_again(monkeypatch):
    for name, options in (("ELASTIC_ETCD_PASSWORD", {}), ("MINE", {"password_env": "MINE"})):
        monkeypatch.setenv(name, "first")
        for expected in ("first", "first", "second"):
            if expected == "second":
                monkeypatch.setenv(name, "second")
            assert read_parameters("127.0.0.1", {"user": "me", **options}).login.password == expected
            assert name not in os.environ
    monkeypatch.setenv("ELASTIC_ETCD_PASSWORD", "for nobody")
    assert read_parameters("127.0.0.1", {}).login is None
    assert "ELASTIC_ETCD_PASSWORD" not in os.environ


def test_password_is_read_from_a_file(tmp_path, monkeypatch):
    path = tmp_path / "password"
    path.write_text("in a file\n")
    path.chmod(0o600)
    assert read("::1", user="me", password_file=str(path)).login.password == "in a file"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read("::1", user="me", password_file="~/password").login.password == "in a file"
    path.chmod(0o622)
    found = problems("::1", user="me", password_file=str(path))
    assert "password_file: other users can write the secret in" in found and "(mode 0622)" in found
    path.chmod(0o600)
    path.write_bytes(b"\xff\xfe")
    assert f"password_file: {path} is not valid UTF-8" in problems("::1", user="me", password_file=str(path))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST", "[::1]:1"])
def test_password_on_loopback_needs_no_tls(host):
    assert read(host, user="me", password="secret").login is not None


@pytest.mark.parametrize(
    "host", ["etcd0", "10.0.0.1", "0.0.0.0", "localhost.example.com", "127.0.0.1.nip.io", "fe80::1"]
)
def test_password_off_loopback_requires_tls_or_an_opt_in(host):
    found = problems(f"127.0.0.1,{host}", user="me", password="secret")
    shown = f"[{host}]:2379" if ":" in host else f"{host}:2379"
    assert f"insecure_password: the password would be sent to {shown} in plain text" in found
    assert "let others read it" in found
    assert "secret" not in found
    assert read(f"https://{host}", user="me", password="secret").security
    for word in ("true", True):
        assert read(host, user="me", password="secret", insecure_password=word).login is not None
    assert read(host).login is None


def test_password_in_endpoint_is_refused_and_not_shown():
    for text in ("http://me:secret@a:1", "me:secret@a", "etcd://me:secret@a"):
        found = problems(text)
        assert "expected endpoints host[:port]" in found
        assert "secret" not in found
    assert "user and password_file" in problems("http://me:secret@a:1")


def test_password_appears_in_no_repr_and_no_error():
    found = read("::1", user="me", password="s3cret")
    assert "s3cret" not in f"{found!r} {found.login!r} {found}"
    broken = "half-\udc80-s3cret"
    found = problems("::1", user="me", environment={"ELASTIC_ETCD_PASSWORD": broken}, prefix="/")
    assert "password: the password is not valid UTF-8" in found
    assert "s3cret" not in found
    assert "s3cret" not in problems("etcd0", user="me", password="s3cret", password_file="/nonexistent")


def test_all_problems_are_reported_together():
    found = problems(
        "a:0",
        protocol="ftp",
        ssl_cert="cert.pem",
        user="me",
        prefix="//",
        read_timeout="soon",
        lease_ttl="1.5",
    ).splitlines()
    assert [re.match(r"--rdzv-(endpoint|conf: \w+)", line)[0] for line in found] == [
        "--rdzv-endpoint",
        "--rdzv-conf: ssl_cert_key",
        "--rdzv-conf: protocol",
        "--rdzv-conf: password",
        "--rdzv-conf: prefix",
        "--rdzv-conf: read_timeout",
        "--rdzv-conf: lease_ttl",
    ]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"protocol": "https", "endpoint": "http://a"}, "protocol: the endpoints use http, but the protocol is https"),
        ({"ssl_cert_key": "key.pem"}, "ssl_cert: expected a certificate and its private key, found only ssl_cert_key"),
        ({"password": "x"}, "user: a password requires a user"),
        ({"password_env": "X"}, "user: a password requires a user"),
        ({"user": "me", "password_env": "X"}, "set the variable X"),
        ({"password_file": "/x"}, "user: a password requires a user"),
        ({"user": "me", "password_file": "/nonexistent"}, "password_file: cannot read the secret file"),
        ({"user": "me", "password": "x", "password_env": "X"}, "password_env: password is also set"),
        ({"user": "me", "password": "x", "insecure_password": "perhaps"}, "insecure_password: expected true or false"),
        ({"read_timeout": 0}, "read_timeout: expected a number of seconds > 0, found 0"),
        ({"read_timeout": "inf"}, "read_timeout: expected a number of seconds > 0, found 'inf'"),
        ({"lease_ttl": -1}, "lease_ttl: expected a number of seconds >= 2, found -1"),
        ({"prefix": "a\nb"}, r"prefix: expected a printable key prefix, such as elastic, found 'a\nb'"),
    ],
)
def test_invalid_option_is_reported_by_name(options, problem):
    assert problem in problems(**options)


def test_values_may_be_text_or_typed():
    parameters = read(read_timeout="2.5", lease_ttl=5, prefix="/team/jobs/")
    assert (parameters.read_timeout, parameters.lease_ttl, parameters.prefix) == (2.5, 5.0, "team/jobs")


@given(
    st.dictionaries(
        st.sampled_from(["protocol", "ca_cert", "ssl_cert", "ssl_cert_key", "user", "password", "password_env",
                         "password_file", "insecure_password", "prefix", "read_timeout", "lease_ttl"]),
        st.one_of(st.none(), st.text(max_size=5), st.integers(-2, 5), st.sampled_from(["http", "https"])),
    )
)  # fmt: skip
def test_random_options_give_consistent_parameters(options):
    try:
        found = read(**options)
    except ConfigurationError as error:
        assert error.problems
        return
    given = {name for name, value in options.items() if value not in (None, "")}
    security = found.security or Security()
    assert (security.cert is None) == (security.key is None)
    assert (found.login is not None) == ("user" in given)
    assert found.security or not given & {"ca_cert", "ssl_cert"}
    assert found.prefix.strip("/") == found.prefix != ""
    assert found.read_timeout > 0
    assert found.lease_ttl is None or found.lease_ttl >= 2


def test_certificates_do_not_depend_on_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = read("https://a", ca_cert="ca.pem", ssl_cert="a.pem", ssl_cert_key="sub/a.key").security
    assert found == Security(f"{tmp_path}/ca.pem", f"{tmp_path}/a.pem", f"{tmp_path}/sub/a.key")


@pytest.mark.parametrize("call", ["factory", "open_backend"])
@pytest.mark.parametrize("module", ["grpc", "google.protobuf"])
def test_missing_library_error_names_it_and_the_plugin(module, call, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    chosen = PluginManager.load({}).select(RendezvousBackendRecord, "etcd")
    with pytest.raises(PluginError, match=f"'etcd' of elastic-etcd .*'{module}'.*install"):
        getattr(chosen, call)(Context(), RendezvousParameters("etcd", "127.0.0.1:1", "job", 1, 1))
