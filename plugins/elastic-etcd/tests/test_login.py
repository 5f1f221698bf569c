"""User, password and token on real servers with authentication."""

import threading

import pytest
from cluster import User
from elastic_etcd.client.errors import EtcdDenied
from elastic_etcd.client.members import Login
from elastic_etcd.client.values import Put, Transaction

ALICE = User("alice", "wonderland-1865", b"/alice/")
BOB = User("bob", "builder-1998")
PATIENT = {"timeout": 60, "attempt": 60}  # a slow login would be tried again and counted twice
SECRETS = (ALICE.password, BOB.password, "not-the-password")


@pytest.fixture(scope="module")
def auth_server(shared_servers):
    return shared_servers.single(users=(ALICE, BOB))


@pytest.fixture
def client_of(auth_server, connect):
    return lambda *login, **options: connect(auth_server.endpoint, login=Login(*login) if login else None, **options)


def put(client, key, value=b""):
    return client.transact(Transaction([], [Put(key, value)]))


def logins(server):
    return server.metric(
        'grpc_server_handled_total{grpc_code="OK",grpc_method="Authenticate",grpc_service="etcdserverpb.Auth",grpc_type="unary"}'
    )


def expired(server):
    """The number of expired tokens in the server's log."""
    return server.log.count("deleted a simple token")


def test_owner_of_the_prefix_can_use_its_keys(client_of):
    client = client_of(ALICE.name, ALICE.password)
    put(client, b"/alice/a", b"1")
    assert client.read(b"/alice/a").first.value == b"1"
    lease = client.grant(10)
    assert client.renew(lease.id) == 10
    client.revoke(lease.id)


def test_wrong_password_is_denied_and_not_shown(client_of):
    client = client_of(ALICE.name, "not-the-password")
    with pytest.raises(EtcdDenied, match="correct the user or the password") as caught:
        client.read(b"/alice/a")
    assert not any(secret in str(caught.value) for secret in SECRETS)


def test_unknown_user_is_denied(client_of):
    with pytest.raises(EtcdDenied, match="correct the user or the password"):
        client_of("mallory", "m").read(b"/alice/a")


@pytest.mark.parametrize("user", [ALICE, BOB], ids=["other prefix", "no role"])
def test_keys_outside_the_prefix_are_denied(client_of, user):
    client = client_of(user.name, user.password)
    with pytest.raises(EtcdDenied, match=r"read and write this job's keys; .* etcdctl role grant-permission"):
        client.read(b"/secret")
    with pytest.raises(EtcdDenied, match="permission to read and write this job's keys"):
        put(client, b"/secret")


def test_missing_login_is_denied(client_of):
    with pytest.raises(EtcdDenied, match="the cluster requires a user and a password"):
        client_of().read(b"/alice/a")


def test_login_is_ignored_until_authentication_is_enabled(etcd, connect, prefix):
    client = connect(etcd.endpoint, login=Login("somebody", "whatever"))
    put(client, prefix, b"1")
    assert client.read(prefix).first.value == b"1"


def test_many_threads_log_in_once(auth_server, client_of, background):
    client = client_of(ALICE.name, ALICE.password, **PATIENT)
    before = logins(auth_server)
    together = threading.Barrier(8)

    def read():
        together.wait(60)
        return client.read(b"/alice/a")

    for thread in [background(read) for _ in range(8)]:
        thread.result(60)
    assert logins(auth_server) - before == 1


def test_expired_token_is_renewed_once(servers, connect, etcd_version, eventually, background):
    if etcd_version < (3, 5):
        pytest.skip("before 3.5, tokens live 5 minutes")
    server = servers.single(users=(ALICE,), token_ttl=1)
    client = connect(server.endpoint, login=Login(ALICE.name, ALICE.password), **PATIENT)
    put(client, b"/alice/a", b"1")
    token = client.tokens.metadata(client.members.current())
    eventually(lambda: expired(server))
    for thread in [background(lambda: put(client, b"/alice/a", b"2")) for _ in range(4)]:
        thread.result(60)
    assert client.read(b"/alice/a").first.value == b"2"
    assert client.tokens.metadata(client.members.current()) != token
    renewed = logins(server) - 1
    assert 1 <= renewed <= expired(server)  # on a machine that stalls, the new token expires too


def test_client_logs_in_again_after_server_restart(servers, connect):
    server = servers.single(users=(ALICE,))
    client = connect(server.endpoint, login=Login(ALICE.name, ALICE.password), **PATIENT)
    put(client, b"/alice/a", b"1")
    server.restart()
    assert client.read(b"/alice/a").first.value == b"1"
    put(client, b"/alice/a", b"2")


def test_changed_password_is_denied(servers, connect):
    server = servers.single(users=(ALICE,))
    client = connect(server.endpoint, login=Login(ALICE.name, ALICE.password), **PATIENT)
    put(client, b"/alice/a", b"1")
    root = server.call("/v3/auth/authenticate", name="root", password="the-roots-password")["token"]
    server.call("/v3/auth/user/changepw", root, name=ALICE.name, password="another")
    with pytest.raises(EtcdDenied, match="correct the user or the password"):
        put(client, b"/alice/a", b"2")
