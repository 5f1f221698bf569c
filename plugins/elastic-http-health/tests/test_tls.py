"""The endpoint over TLS: accepted clients, and the cost of hostile ones."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import time

import pytest
from asking import VALUES, ask, send
from elastic_http_health.options import Limits, Options, read_options
from elastic_http_health.server import HttpHealthServer
from elastic_testing import Background, eventually

from elastic_core.clock import SystemClock
from elastic_core.errors import ConfigurationError

pytestmark = pytest.mark.integration

trustme = pytest.importorskip("trustme")

AT_ONCE = 20.0  # seconds, on a machine that may stall


class Certificates:
    """A certificate in files, issued by the test run's authority, which can be replaced."""

    def __init__(self, folder, authority):
        self.authority = authority
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.key.touch(0o600)
        self.issue()

    def issue(self, *more):
        issued = self.authority.issue_cert("127.0.0.1", "localhost", *more)
        issued.cert_chain_pems[0].write_to_path(self.cert)
        issued.private_key_pem.write_to_path(self.key)

    def context(self):
        """A client's TLS context that trusts the authority."""
        made = ssl.create_default_context()
        self.authority.configure_trust(made)
        return made

    def options(self, **limits):
        found = read_options({**VALUES, "cert_file": str(self.cert), "key_file": str(self.key)})
        return Options(tls=found.tls, secret_files=found.secret_files, limits=Limits(**limits))


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def certificates(tmp_path, authority):
    return Certificates(tmp_path, authority)


def ask_tls(port, path, context, headers=None):
    link = http.client.HTTPSConnection("localhost", port, timeout=60, context=context)
    try:
        link.request("GET", path, headers=headers or {})
        answer = link.getresponse()
        return answer.status, answer.read()
    finally:
        link.close()


@contextlib.contextmanager
def connected(port, context):
    with (
        socket.create_connection(("127.0.0.1", port), 60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as link,
    ):
        yield link


def test_all_paths_are_served_over_tls(view, serve, certificates):
    port = serve(certificates.options()).port
    context = certificates.context()
    for path in ("/", "/status", "/metrics", "/livez", "/readyz?verbose"):
        assert ask_tls(port, path, context)[0] == 200
    assert ask_tls(port, "/x", context)[0] == 404
    assert ask_tls(port, "/status", context, {"Host": "evil.example"})[0] == 421
    change = view.status().version
    begun = SystemClock().now()
    waiting = Background(lambda: ask_tls(port, f"/changes?after={change}&wait=30", context))
    while not waiting.over(0.05):  # the first change may come before its request
        view.show(round=2)
    assert json.loads(waiting.result()[1])["change"] > change
    assert SystemClock().now() - begun < AT_ONCE


def test_long_answer_ends_with_close_notify(view, serve, certificates):
    """Clients can then distinguish a complete answer from a truncated one."""
    view.show(reason="x" * 3_000_000)
    with connected(serve(certificates.options()).port, certificates.context()) as link:
        link.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        found = b""
        while piece := link.recv(65536):  # raises SSLEOFError without close_notify
            found += piece
    assert len(found) > 3_000_000
    assert found.endswith(b"}")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_and_1_3_are_accepted(serve, certificates, version):
    context = certificates.context()
    context.minimum_version = context.maximum_version = version
    assert ask_tls(serve(certificates.options()).port, "/livez", context)[0] == 200


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tls_1_1_is_refused(serve, certificates):
    context = certificates.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    server = serve(certificates.options())
    with pytest.raises(ssl.SSLError):
        ask_tls(server.port, "/livez", context)
    eventually(lambda: server.counts.closed["no TLS"] == 1)


def test_client_that_does_not_trust_the_server_sends_nothing(serve, certificates):
    server = serve(certificates.options())
    with pytest.raises(ssl.SSLCertVerificationError):
        ask_tls(server.port, "/status", ssl.create_default_context())
    eventually(lambda: server.counts.closed["no TLS"] == 1)
    assert server.counts.answers == {}


def test_plain_http_client_is_told_to_use_https(serve, certificates):
    found = ask(serve(certificates.options()).port, "/status")
    assert (found.status, found.text) == (400, "this port requires TLS; use https://\n")


def test_random_bytes_cause_no_server_error(serve, certificates, capfd):
    server = serve(certificates.options(rate=1_000_000, burst=1_000_000))
    for length in (1, 5, 50, 5000):
        send(server.port, b"\x16\x03\x01" + b"\xff" * length)
        send(server.port, b"\x16" + os.urandom(length))
    with connected(server.port, certificates.context()) as link:
        os.write(link.fileno(), b"no record of TLS" * 10)
        with contextlib.suppress(OSError):
            assert link.recv(100) == b""
    assert ask_tls(server.port, "/livez", certificates.context())[0] == 200
    eventually(lambda: server.counts.connections == 0)
    assert "health endpoint failed" not in capfd.readouterr().err


def test_unfinished_handshake_times_out(serve, certificates):
    server = serve(certificates.options(head_seconds=0.5))
    context = certificates.context()
    hello, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(received, hello, server_hostname="localhost").do_handshake()
    begun = hello.read()
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60)) for _ in range(3)]
        for link, part in zip(links, (b"", begun[:100], begun), strict=True):  # no hello, half of it, and all of it
            link.sendall(part)
        for link in links:
            with contextlib.suppress(ConnectionError):
                while link.recv(4096):
                    pass
    assert server.counts.closed["head timeout"] == 3


def test_unfinished_handshakes_do_not_block_probes(serve, certificates):
    server = serve(certificates.options(head_seconds=60, connections=8, rate=1_000_000, burst=1_000_000))
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            link = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
            link.sendall(b"\x16\x03\x01")
        begun = SystemClock().now()
        assert ask_tls(server.port, "/livez", certificates.context())[0] == 200
        assert SystemClock().now() - begun < AT_ONCE
    assert server.counts.most_connections == 8
    assert server.counts.closed["evicted"] >= 32


@pytest.mark.parametrize("after_handshake", [False, True], ids=["handshake", "head"])
def test_client_sending_single_bytes_is_disconnected(serve, certificates, after_handshake):
    server = serve(certificates.options(spare_reads=1, head_seconds=60))
    with contextlib.ExitStack() as stack:
        if after_handshake:
            link = stack.enter_context(connected(server.port, certificates.context()))
        else:
            link = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
            link.sendall(b"\x16\x03\x01\x40\x00\x01")
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            while not server.counts.closed:
                link.send(b"a")
                time.sleep(0.01)
    assert server.counts.closed == {"too many pieces": 1}


def test_rotated_certificate_is_loaded(serve, certificates, capfd):
    port = serve(certificates.options()).port

    def names():
        with connected(port, certificates.context()) as link:
            return {name for _, name in link.getpeercert()["subjectAltName"]}

    assert "node7" not in names()
    before = certificates.key.read_bytes()
    certificates.issue("node7")
    eventually(lambda: "node7" in names())
    certificates.key.write_bytes(before)  # like a rotation that has replaced only the certificate so far
    log_text = ""

    def is_logged():
        nonlocal log_text
        assert "node7" in names()
        log_text += capfd.readouterr().err
        return "does not belong to the certificate" in log_text

    eventually(is_logged)
    certificates.issue("node8")
    eventually(lambda: "node8" in names())
    assert log_text.count("health endpoint failed") == 1


def problems(**values):
    with pytest.raises(ConfigurationError) as caught:
        read_options({**VALUES, **values})
    return str(caught.value)


def test_invalid_certificate_files_are_refused(certificates, tmp_path, authority):
    cert, key, other = str(certificates.cert), str(certificates.key), tmp_path / "other.pem"

    authority.issue_cert("node7").private_key_pem.write_to_path(other)
    assert f"the private key in {cert!r} and {str(other)!r} does not belong to the certificate" in problems(
        cert_file=cert, key_file=str(other)
    )
    must = "must contain a certificate and its private key, in PEM format and without a password"
    assert f"{cert!r} {must}" in problems(cert_file=cert)
    other.write_text("junk")
    assert must in problems(cert_file=cert, key_file=str(other))
    for missing in (str(tmp_path / "none"), str(tmp_path), "a\0b"):
        for files in ({"cert_file": cert, "key_file": missing}, {"cert_file": missing, "key_file": key}):
            assert "--health-conf: cannot read the certificate and private key in" in problems(**files)
    assert "key_file requires cert_file" in problems(key_file=key)


def test_encrypted_key_is_refused_without_a_prompt(certificates):
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(certificates.key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"abc")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    certificates.key.write_bytes(key.private_bytes(*form, secret))
    assert "without a password" in problems(cert_file=str(certificates.cert), key_file=str(certificates.key))


def test_readable_combined_file_works_with_a_warning(serve, certificates, capfd):
    certificates.cert.write_bytes(certificates.key.read_bytes() + certificates.cert.read_bytes())
    certificates.cert.chmod(0o644)
    port = serve(read_options({**VALUES, "cert_file": str(certificates.cert)})).port
    assert ask_tls(port, "/livez", certificates.context())[0] == 200
    assert f"other users may read or change {certificates.cert}, whose mode is 0644" in capfd.readouterr().err


def test_job_logs_the_https_address_of_its_endpoint(certificates, tmp_path):
    script = tmp_path / "ok.py"
    script.write_text("print('ran')\n")
    files = f"--health-conf=cert_file={certificates.cert},key_file={certificates.key}"
    command = (sys.executable, "-m", "elastic_core", "run", "--health-port=0", "--node-id=n", files, str(script))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "health endpoint started: endpoint=http addresses=https://127.0.0.1:" in done.stderr


def test_server_stops_during_a_handshake(view, certificates):
    server = HttpHealthServer(view, 0, 30.0, certificates.options())
    server.start()
    with socket.create_connection(("127.0.0.1", server.port), 60) as link:
        link.sendall(b"\x16\x03\x01")
        eventually(lambda: server.counts.connections == 1)
        server.stop()
        with contextlib.suppress(ConnectionError):
            assert link.recv(100) == b""
