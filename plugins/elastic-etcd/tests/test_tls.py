"""TLS against real servers: right, wrong, and missing on one side. Each mismatch is told within the timeout."""

import os
import subprocess
import sys
import time

import pytest
from cluster import make_certificates
from elastic_etcd.client.channel import Security
from elastic_etcd.client.client import EtcdClient
from elastic_etcd.client.errors import EtcdRefused, EtcdUnreachable
from elastic_etcd.client.values import Put, Transaction
from watching import Followed

from elastic_core.errors import ConfigurationError

TIMEOUT = 5.0  # where it has to pass; on a machine that stalls for as long, the cause is not known
PATIENCE = 60.0  # where nobody waits: waiting does not make certificates better


@pytest.fixture(scope="module")
def secure(shared_servers, certificates):
    return shared_servers.single(certificates=certificates)


@pytest.fixture(scope="module")
def strict(shared_servers, certificates):
    """Wants certificates of its clients."""
    return shared_servers.single(certificates=certificates, client_certificates=True)


def failure(server, security, kind, words):
    """The error of a call, which says these words and came in time: at once if it is a refusal."""
    client = EtcdClient([server.endpoint], security, timeout=PATIENCE if kind is EtcdRefused else TIMEOUT)
    begun = time.monotonic()
    try:
        with pytest.raises(kind) as caught:
            client.transact(Transaction([], [Put(b"/tls", b"1")]))
    finally:
        client.close()
    assert time.monotonic() - begun < PATIENCE / 2
    assert server.endpoint in str(caught.value)
    assert words in str(caught.value)
    return caught.value


def works(server, security):
    client = EtcdClient([server.endpoint], security, timeout=PATIENCE)
    client.transact(Transaction([], [Put(b"/tls", b"1")]))
    assert client.read(b"/tls").first.value == b"1"
    client.close()


def test_an_authority_that_we_are_given(secure, certificates):
    works(secure, Security(certificates.ca))


def test_a_certificate_of_ours(strict, certificates):
    works(strict, Security(certificates.ca, certificates.client_cert, certificates.client_key))


def test_plain_text_to_a_server_that_expects_tls(secure):
    error = failure(secure, None, EtcdUnreachable, "it may expect TLS (use protocol https)")
    assert not error.landed


def test_tls_to_a_server_that_speaks_plain_text(etcd, certificates):
    error = failure(
        etcd, Security(certificates.ca), EtcdUnreachable, "it may speak plain text (protocol http), or hang"
    )
    assert not error.landed


def test_a_server_of_another_authority(secure, strange_certificates):
    failure(secure, Security(strange_certificates.ca), EtcdRefused, "not from an authority that we trust")


def test_without_an_authority_the_machine_is_asked_and_never_plain_text(secure, etcd, certificates):
    ours = Security(cert=certificates.client_cert, key=certificates.client_key)
    failure(secure, ours, EtcdRefused, "not from an authority that we trust")
    failure(etcd, ours, EtcdUnreachable, "may speak plain text")


def test_the_machine_may_trust_the_authority(secure, certificates, tmp_path):
    """In a process of its own, since OpenSSL's variable names what the machine trusts."""
    script = (
        "import sys; from elastic_etcd.client.client import EtcdClient; "
        "from elastic_etcd.client.channel import Security; "
        "client = EtcdClient([sys.argv[1]], Security(), timeout=60); print(client.read(b'/').revision); client.close()"
    )
    environment = {**os.environ, "SSL_CERT_FILE": certificates.ca}
    done = subprocess.run(
        [sys.executable, "-c", script, secure.endpoint],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert int(done.stdout) > 0


def test_a_server_that_wants_a_certificate_and_gets_none(strict, certificates):
    failure(strict, Security(certificates.ca), EtcdRefused, "or requires one")


def test_a_certificate_that_the_server_does_not_accept(strict, certificates, strange_certificates):
    strange = Security(certificates.ca, strange_certificates.client_cert, strange_certificates.client_key)
    failure(strict, strange, EtcdRefused, "it rejects our certificate")


def test_a_certificate_for_another_name(shared_servers, tmp_path):
    elsewhere = make_certificates(tmp_path, "etcd.example")
    server = shared_servers.single(certificates=elsewhere)
    failure(server, Security(elsewhere.ca), EtcdRefused, "its certificate is for other names")


def test_one_member_with_a_wrong_certificate_is_passed_over(secure, shared_servers, strange_certificates, certificates):
    other = shared_servers.single(certificates=strange_certificates)
    endpoints = [other.endpoint, secure.endpoint]
    client = EtcdClient(endpoints, Security(certificates.ca), timeout=PATIENCE, attempt=PATIENCE)
    client.transact(Transaction([], [Put(b"/tls", b"2")]))
    client.close()


def refused(security):
    with pytest.raises(ConfigurationError) as caught:
        security.credentials()
    return {problem.origin: problem.message for problem in caught.value.problems}


def test_files_that_cannot_be_read_are_all_named():
    problems = refused(Security("/no/ca.pem", "/no/cert.pem", "/no/key.pem"))
    assert set(problems) == {"ca_cert", "cert", "key"}
    assert "/no/key.pem: No such file or directory" in problems["key"]


def test_files_that_are_no_certificates(certificates, tmp_path):
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    assert set(refused(Security(str(junk)))) == {"ca_cert"}
    assert set(refused(Security(None, str(junk), certificates.key))) == {"cert"}


def test_a_key_that_is_not_of_the_certificate(certificates):
    problems = refused(Security(None, certificates.client_cert, certificates.key))
    assert "its unencrypted private key" in problems["cert"]


def test_a_certificate_without_its_key_and_the_reverse(certificates):
    assert "found cert alone" in refused(Security(cert=certificates.client_cert))["key"]
    assert "found key alone" in refused(Security(key=certificates.client_key))["cert"]


def test_a_call_tells_what_is_wrong_with_the_files(secure):
    client = EtcdClient([secure.endpoint], Security("/no/ca.pem"))
    with pytest.raises(ConfigurationError, match=r"/no/ca\.pem"):
        client.read(b"a")
    client.close()


def test_renewed_certificates_are_used(servers, tmp_path, connect, prefix):
    """The files have others now, of another authority; the server has been restarted with them."""
    files = make_certificates(tmp_path)
    server = servers.single(certificates=files, client_certificates=True)
    client = connect(server.endpoint, security=Security(files.ca, files.client_cert, files.client_key))
    keys = Followed(client, prefix).stands()
    server.terminate()
    for file in tmp_path.iterdir():
        file.unlink()
    make_certificates(tmp_path)
    server.start()
    client.transact(Transaction([], [Put(prefix, b"1")]))
    keys.until(lambda: keys.pairs == {prefix: b"1"})
