"""Attacks on a job by a user of another prefix, on a server with users and permissions by prefix."""

from __future__ import annotations

import pytest
from cluster import User
from elastic_etcd import EtcdRendezvousBackend
from elastic_etcd.backend.keys import Keys
from elastic_etcd.client.errors import EtcdDenied
from elastic_etcd.client.members import Login
from elastic_etcd.client.values import Put, Transaction

from elastic_core.errors import RendezvousError

LONG = 60.0
TRAINER = User("trainer", "the-trainers", b"/elastic/")
MALLORY = User("mallory", "her-own", b"/elasticsearch/")
KEYS = Keys("elastic", "job")
ENTRY = KEYS.node("a/1")


@pytest.fixture(scope="module")
def auth_server(shared_servers):
    return shared_servers.single(users=(TRAINER, MALLORY))


@pytest.fixture
def as_user(auth_server, connect):
    return lambda user: connect(auth_server.endpoint, login=Login(user.name, user.password))


@pytest.fixture
def job(as_user):
    """The backend of a node that is announced and has written a state."""
    backend = EtcdRendezvousBackend(as_user(TRAINER), "job", "elastic", lease_ttl=LONG)
    backend.announce("a/1", b"entry")
    found = backend.get_state()
    assert backend.set_state(b"state", found and found[1])[2]
    yield backend
    backend.close()


def test_node_of_another_prefix_cannot_join(job, as_user):
    hers = EtcdRendezvousBackend(as_user(MALLORY), "job", "elastic", lease_ttl=LONG)
    for attempt in (hers.get_state, hers.roster, lambda: hers.announce("b/1", b""), lambda: hers.set_state(b"")):
        with pytest.raises(RendezvousError, match="permission"):
            attempt()
    hers.close()


def test_user_of_another_prefix_cannot_revoke_a_lease(job, as_user):
    lease = as_user(TRAINER).read(ENTRY).first.lease
    mallory = as_user(MALLORY)
    with pytest.raises(EtcdDenied):
        mallory.revoke(lease)
    with pytest.raises(EtcdDenied):
        mallory.transact(Transaction([], [Put(ENTRY, b"", lease)]))
    assert [item.key for item in job.roster()] == ["a/1"]


def test_anonymous_client_can_renew_a_lease_but_not_read(job, as_user, auth_server):
    """etcd does not authenticate renewals, so a client can keep a dead node's lease alive (see
    `docs/guides/etcd.md`)."""
    lease = as_user(TRAINER).read(ENTRY).first.lease
    assert as_user(MALLORY).renew(lease) == LONG
    assert auth_server.call("/v3/lease/keepalive", ID=str(lease))["result"]["TTL"] == "60"
    with pytest.raises(AssertionError, match="user name is empty"):
        auth_server.call("/v3/kv/range", key=ENTRY)
