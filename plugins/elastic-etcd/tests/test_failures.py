"""Classification of failed attempts by the messages that gRPC and etcd really send; and an exhausted quota."""

import pytest
from elastic_etcd.client.errors import (
    ErrorMeaning,
    EtcdDenied,
    EtcdFull,
    EtcdLeaseExists,
    EtcdLeaseGone,
    EtcdRefused,
    Failure,
    fault,
    is_mistrust,
    judge,
    refusal,
)
from elastic_etcd.client.members import Member
from elastic_etcd.client.values import Put, Transaction

CONNECT = "failed to connect to all addresses; last error: "

VERDICTS = [
    (
        "UNAVAILABLE",
        CONNECT + "UNKNOWN: ipv4:127.0.0.1:1: Failed to connect: Connection refused",
        ErrorMeaning.NOT_SENT,
    ),
    ("UNAVAILABLE", "errors resolving no.such:2379: [field:hostname lookup error]", ErrorMeaning.NOT_SENT),
    ("UNAVAILABLE", "DNS resolution failed for no.such:2379", ErrorMeaning.NOT_SENT),
    ("UNAVAILABLE", "etcdserver: no leader", ErrorMeaning.NOT_SENT),
    ("UNAVAILABLE", "etcdserver: rpc not supported for learner", ErrorMeaning.NOT_SENT),
    ("FAILED_PRECONDITION", "etcdserver: not leader", ErrorMeaning.NOT_SENT),
    ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", ErrorMeaning.NOT_SENT),
    ("UNIMPLEMENTED", "unknown service etcdserverpb.KV", ErrorMeaning.NOT_SENT),
    ("UNAVAILABLE", "Socket closed", ErrorMeaning.ELSEWHERE),
    ("UNAVAILABLE", "etcdserver: request timed out, possibly due to previous leader failure", ErrorMeaning.ELSEWHERE),
    ("UNAVAILABLE", "etcdserver: server stopped", ErrorMeaning.ELSEWHERE),
    ("UNAVAILABLE", "etcdserver: leader changed", ErrorMeaning.ELSEWHERE),
    ("DEADLINE_EXCEEDED", "Deadline Exceeded", ErrorMeaning.ELSEWHERE),
    ("INTERNAL", "RST_STREAM", ErrorMeaning.ELSEWHERE),
    ("UNKNOWN", "", ErrorMeaning.ELSEWHERE),
    ("CANCELLED", "", ErrorMeaning.ELSEWHERE),
    ("UNAUTHENTICATED", "etcdserver: invalid auth token", ErrorMeaning.LOG_IN),
    ("PERMISSION_DENIED", "etcdserver: invalid auth token", ErrorMeaning.LOG_IN),
    ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", ErrorMeaning.LOG_IN),
    ("INVALID_ARGUMENT", "etcdserver: user name is empty", ErrorMeaning.LOG_IN),
    ("PERMISSION_DENIED", "etcdserver: permission denied", ErrorMeaning.REFUSED),
    ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", ErrorMeaning.REFUSED),
    ("NOT_FOUND", "etcdserver: requested lease not found", ErrorMeaning.REFUSED),
    ("INVALID_ARGUMENT", "etcdserver: duplicate key given in txn request", ErrorMeaning.REFUSED),
]


@pytest.mark.parametrize(("code", "details", "verdict"), VERDICTS)
def test_failure_is_classified_by_code_and_text(code, details, verdict):
    assert judge(Failure(code, details)) is verdict


REFUSALS = [
    ("PERMISSION_DENIED", "etcdserver: permission denied", EtcdDenied, "role grant-permission"),
    ("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password", EtcdDenied, "password"),
    ("INVALID_ARGUMENT", "etcdserver: user name is empty", EtcdDenied, "the cluster requires a user and a password"),
    ("UNAUTHENTICATED", "etcdserver: invalid auth token", EtcdDenied, "denies access"),
    ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", EtcdFull, "alarm disarm"),
    ("NOT_FOUND", "etcdserver: requested lease not found", EtcdLeaseGone, "request a new one"),
    ("FAILED_PRECONDITION", "etcdserver: lease already exists", EtcdLeaseExists, "already exists: choose another id"),
    ("OUT_OF_RANGE", "etcdserver: mvcc: something new", EtcdRefused, "something new"),
]


@pytest.mark.parametrize(("code", "details", "kind", "words"), REFUSALS)
def test_refusal_raises_matching_error(code, details, kind, words):
    error = refusal(Failure(code, details), "there:2379")
    assert type(error) is kind
    assert words in str(error)
    assert "there:2379" in str(error)
    assert details in str(error)


FAULTS = [
    ("UNAVAILABLE", CONNECT + "Connection refused", "nothing listens there"),
    ("UNAVAILABLE", "errors resolving no.such:2379: [x]", "the name cannot be resolved"),
    ("UNAVAILABLE", CONNECT + "ipv4:127.0.0.1:1: Socket closed", "it may expect TLS"),
    ("UNAVAILABLE", CONNECT + "Handshake read failed (Socket closed)", "perhaps it does not use TLS"),
    ("UNAVAILABLE", CONNECT + "SSL_ERROR_SSL: x:WRONG_VERSION_NUMBER", "perhaps it does not use TLS"),
    ("UNAVAILABLE", CONNECT + "Handshake read failed (Endpoint closing)", "or it hangs"),
    ("UNAVAILABLE", CONNECT + "connection attempt timed out before receiving SETTINGS frame", "does not answer"),
    ("UNAVAILABLE", CONNECT + "x:CERTIFICATE_VERIFY_FAILED: y", "set ca_cert"),
    ("UNAVAILABLE", CONNECT + "ipv4:127.0.0.1:1: Unwrap failed (TSI_DATA_CORRUPTED)", "(ssl_cert, ssl_cert_key)"),
    ("UNAVAILABLE", CONNECT + "x: Peer name 127.0.0.1 is not in peer certificate", "for other names"),
    ("UNAVAILABLE", CONNECT + "x: Hostname Verification Check failed.", "for other names"),
    ("UNAVAILABLE", CONNECT + "x:SSLV3_ALERT_BAD_CERTIFICATE: OK", "(ssl_cert, ssl_cert_key)"),
    (
        "UNAVAILABLE",
        CONNECT + "(Expected SETTINGS frame as the first frame, got frame type 80)",
        "server there is not etcd",
    ),
    ("UNAVAILABLE", CONNECT + "(Trying to connect an http1.x server (HTTP status 400))", "server there is not etcd"),
    ("UNAVAILABLE", "etcdserver: no leader", "more than half of the cluster's members"),
    ("UNIMPLEMENTED", "unknown service", "server there is not etcd"),
    ("DEADLINE_EXCEEDED", "Deadline Exceeded", "did not answer in time"),
    ("INTERNAL", "something new", "something new (INTERNAL)"),
]


@pytest.mark.parametrize(("code", "details", "words"), FAULTS)
def test_fault_names_the_probable_cause(code, details, words):
    assert words in fault(Failure(code, details), over_tls=False)


def test_closed_connection_suggests_the_other_protocol():
    hung_up = Failure("UNAVAILABLE", CONNECT + "ipv4:127.0.0.1:1: Socket closed")
    assert "protocol https" in fault(hung_up, over_tls=False)
    assert "protocol=http)" in fault(hung_up, over_tls=True)


def test_vague_fault_does_not_replace_a_specific_one():
    vague = fault(Failure("UNAVAILABLE", CONNECT + "Failed to connect to remote host: FD Shutdown"), over_tls=False)
    member = Member("there:2379", security=None)
    member.found_bad(vague)
    assert member.fault == "it cannot be reached"
    member.found_bad("nothing listens there")
    member.found_bad(vague)
    assert member.fault == "nothing listens there"
    member.found_well()
    assert member.fault == ""


def test_only_certificate_failures_are_mistrust():
    assert is_mistrust(Failure("UNAVAILABLE", CONNECT + "x:CERTIFICATE_VERIFY_FAILED: y"))
    assert not is_mistrust(Failure("UNAVAILABLE", CONNECT + "Connection refused"))
    assert not is_mistrust(Failure("UNAVAILABLE", "etcdserver: ALERT"))


def test_exhausted_quota_raises_etcd_full(servers, connect, prefix):
    client = connect(servers.single(quota=2 * 1024 * 1024).endpoint)
    with pytest.raises(EtcdFull, match="its quota is used up"):
        for number in range(300):  # etcd checks the size ten times a second
            client.transact(Transaction([], [Put(prefix + b"%d" % number, b"x" * 400_000)]))
    with pytest.raises(EtcdFull, match="etcdctl alarm disarm"):
        client.grant(10)
    assert client.read(prefix + b"0").count == 1
