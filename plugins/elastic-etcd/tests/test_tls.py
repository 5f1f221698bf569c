"""TLS with real servers: correct, wrong, and missing on one side. Each mismatch is reported within the timeout."""

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

TIMEOUT = 5.0  # for calls that must time out; on a machine that stalls this long, the cause is not known
PATIENCE = 60.0  # for calls that end earlier: refused certificates are not tried again


@pytest.fixture(scope="module")
def secure(shared_servers, certificates):
    return shared_servers.single(certificates=certificates)


@pytest.fixture(scope="module")
def mutual_tls(shared_servers, certificates):
    """A server that requires client certificates."""
    return shared_servers.single(certificates=certificates, client_certificates=True)


def failure(server, security, kind, words):
    """The error of a call. It must contain `words` and arrive in time; a refusal arrives immediately."""
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


def test_configured_authority_is_trusted(secure, certificates):
    works(secure, Security(certificates.ca))


def test_client_certificate_is_accepted(mutual_tls, certificates):
    works(mutual_tls, Security(certificates.ca, certificates.client_cert, certificates.client_key))


def test_plain_text_to_tls_server_suggests_https(secure):
    error = failure(secure, None, EtcdUnreachable, "it may expect TLS (use protocol https)")
    assert not error.landed


def test_tls_to_plain_text_server_suggests_http(etcd, certificates):
    error = failure(
        etcd, Security(certificates.ca), EtcdUnreachable, "perhaps it does not use TLS (protocol=http), or it hangs"
    )
    assert not error.landed


def test_server_of_unknown_authority_is_refused(secure, untrusted_certificates):
    failure(secure, Security(untrusted_certificates.ca), EtcdRefused, "not from an authority that this client trusts")


def test_without_ca_cert_system_authorities_apply(secure, certificates):
    ours = Security(cert=certificates.client_cert, key=certificates.client_key)
    failure(secure, ours, EtcdRefused, "not from an authority that this client trusts")


def test_system_trust_store_is_used(secure, certificates, tmp_path):
    """In a separate process, because OpenSSL reads the trust store from a variable."""
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


def test_missing_client_certificate_is_reported(mutual_tls, certificates):
    failure(mutual_tls, Security(certificates.ca), EtcdRefused, "or requires one")


def test_rejected_client_certificate_is_reported(mutual_tls, certificates, untrusted_certificates):
    untrusted = Security(certificates.ca, untrusted_certificates.client_cert, untrusted_certificates.client_key)
    failure(mutual_tls, untrusted, EtcdRefused, "it rejects our certificate")


def test_certificate_for_another_name_is_refused(shared_servers, tmp_path):
    elsewhere = make_certificates(tmp_path, "etcd.example")
    server = shared_servers.single(certificates=elsewhere)
    failure(server, Security(elsewhere.ca), EtcdRefused, "its certificate is for other names")


def test_client_skips_member_with_wrong_certificate(
    secure, shared_servers, untrusted_certificates, certificates, connect
):
    other = shared_servers.single(certificates=untrusted_certificates)
    endpoints = f"{other.endpoint},{secure.endpoint}"
    client = connect(endpoints, security=Security(certificates.ca), attempt=PATIENCE)
    client.transact(Transaction([], [Put(b"/tls", b"2")]))


def refused(security):
    with pytest.raises(ConfigurationError) as caught:
        security.credentials()
    return {problem.origin: problem.message for problem in caught.value.problems}


def test_unreadable_files_are_all_named():
    problems = refused(Security("/no/ca.pem", "/no/cert.pem", "/no/key.pem"))
    assert set(problems) == {"ca_cert", "cert", "key"}
    assert "/no/key.pem: No such file or directory" in problems["key"]


def test_invalid_certificate_files_are_named(certificates, tmp_path):
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    assert set(refused(Security(str(junk)))) == {"ca_cert"}
    assert set(refused(Security(None, str(junk), certificates.key))) == {"cert"}


def test_mismatched_private_key_is_refused(certificates):
    problems = refused(Security(None, certificates.client_cert, certificates.key))
    assert "its unencrypted private key" in problems["cert"]


def test_certificate_and_key_require_each_other(certificates):
    assert "found only cert" in refused(Security(cert=certificates.client_cert))["key"]
    assert "found only key" in refused(Security(key=certificates.client_key))["cert"]


def test_reconnect_uses_renewed_certificates(servers, tmp_path, connect, prefix):
    """The files now hold certificates from another authority, and the server was restarted with them."""
    files = make_certificates(tmp_path)
    server = servers.single(certificates=files, client_certificates=True)
    client = connect(server.endpoint, security=Security(files.ca, files.client_cert, files.client_key))
    keys = Followed(client, prefix).established()
    server.terminate()
    for file in tmp_path.iterdir():
        file.unlink()
    make_certificates(tmp_path)
    server.start()
    client.transact(Transaction([], [Put(prefix, b"1")]))
    keys.until(lambda: keys.pairs == {prefix: b"1"})


def test_client_fails_over_while_its_key_file_is_missing(servers, tmp_path, connect):
    """A renewal may replace the file at the moment at which the member in use is lost."""
    certificates = make_certificates(tmp_path)
    cluster = servers.cluster(3, certificates=certificates, client_certificates=True)
    security = Security(certificates.ca, certificates.client_cert, certificates.client_key)
    members = [*cluster.followers(), cluster.leader()]
    client = connect(",".join(member.endpoint for member in members), security=security)
    client.transact(Transaction([], [Put(b"/tls", b"1")]))
    os.unlink(certificates.client_key)
    members[0].kill()
    assert client.read(b"/tls").first.value == b"1"
    with pytest.raises(ConfigurationError, match=certificates.client_key):
        connect(members[1].endpoint, security=security).read(b"/tls")
