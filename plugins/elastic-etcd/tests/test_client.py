"""The client with one real server: requests and answers."""

import threading

import psutil
import pytest
from elastic_etcd.client.client import Call, EtcdClient
from elastic_etcd.client.errors import EtcdClosed, EtcdLeaseExists, EtcdLeaseGone, EtcdRefused
from elastic_etcd.client.messages import OPERATIONS, REQUEST_BYTES, rpc
from elastic_etcd.client.values import (
    Compare,
    Delete,
    Field,
    Get,
    Put,
    Transaction,
    absent,
    end_of,
)


@pytest.fixture
def client(etcd, connect):
    return connect(etcd.endpoint, attempt=20)  # long enough for a busy machine


def put(client, key, value, lease=0):
    return client.transact(Transaction([], [Put(key, value, lease)])).revision


def test_range_is_in_order_of_creation(client, prefix):
    for name in (b"c", b"a", b"b"):
        put(client, prefix + name, name)
    put(client, prefix + b"c", b"again")
    found = client.read(prefix, end_of(prefix))
    assert [pair.key[-1:] for pair in found.values] == [b"c", b"a", b"b"]
    keys = client.read(prefix, end_of(prefix), keys_only=True)
    assert [pair.value for pair in keys.values] == [b"", b"", b""]


def test_conditions_choose_the_branch_of_a_transaction(client, prefix):
    key = prefix + b"a"
    transaction = Transaction([absent(key)], [Put(key, b"mine"), Get(key)], [Get(key)])
    won, lost = client.transact(transaction), client.transact(transaction)
    assert won.succeeded
    assert not lost.succeeded
    assert won.ranges[0].values == ()
    assert won.ranges[1].first.value == lost.ranges[0].first.value == b"mine"
    assert won.ranges[1].first.mod_revision == won.revision


def test_every_field_can_be_compared(client, prefix):
    key = prefix + b"a"
    lease = client.grant(30).id
    created = put(client, key, b"one", lease)
    changed = put(client, key, b"two", lease)
    holds = {
        Field.VALUE: b"two",
        Field.CREATED: created,
        Field.MODIFIED: changed,
        Field.VERSION: 2,
        Field.LEASE: lease,
    }
    for field, expected in holds.items():
        assert client.transact(Transaction([Compare(key, field, expected)])).succeeded, field
        other = b"other" if field is Field.VALUE else expected + 1
        assert not client.transact(Transaction([Compare(key, field, other)])).succeeded, field
    client.revoke(lease)


def test_missing_key_compares_as_zeros_and_no_value(client, prefix):
    key = prefix + b"none"
    for field in Field:
        nothing = b"" if field is Field.VALUE else 0
        expected = field is not Field.VALUE
        assert client.transact(Transaction([Compare(key, field, nothing)])).succeeded is expected, field


def test_revoked_lease_deletes_its_keys(client, prefix):
    lease = client.grant(30)
    assert lease.ttl == 30
    assert client.renew(lease.id) == 30
    put(client, prefix + b"a", b"", lease.id)
    assert client.read(prefix + b"a").first.lease == lease.id
    client.revoke(lease.id)
    assert client.read(prefix + b"a").first is None
    client.revoke(lease.id)
    with pytest.raises(EtcdLeaseGone, match="request a new one"):
        client.renew(lease.id)
    with pytest.raises(EtcdLeaseGone, match="request a new one"):
        put(client, prefix + b"a", b"", lease.id)


def test_lease_lasts_at_least_two_seconds(client):
    lease = client.grant(0.1)
    assert lease.ttl >= 2
    client.revoke(lease.id)


def test_existing_lease_id_raises_lease_exists(client):
    """`grant` uses it to recognize a lease whose answer was lost."""
    lease = client.grant(30).id
    request = rpc().lease_grant.filled(ID=lease, TTL=30)
    with pytest.raises(EtcdLeaseExists):
        Call(client, rpc().lease_grant, request, repeatable=True).answer()
    client.revoke(lease)


@pytest.mark.parametrize("part", ["conditions", "then", "otherwise"])
def test_transaction_with_too_many_operations_is_not_sent(client, prefix, part):
    one = absent(prefix) if part == "conditions" else Get(prefix)
    full = {"conditions": [], part: [one] * OPERATIONS}
    client.transact(Transaction(**full))
    with pytest.raises(ValueError, match=f"at most 128 in `{part}` of a transaction, found 129; split it"):
        client.transact(Transaction(**{**full, part: [one] * (OPERATIONS + 1)}))


def test_too_large_value_is_not_sent(client, prefix):
    put(client, prefix + b"a", b"x" * (REQUEST_BYTES - 1024))
    with pytest.raises(ValueError, match=r"a value of at most 1\.5 MiB .* found 1572864 bytes"):
        put(client, prefix + b"a", b"x" * REQUEST_BYTES)
    with pytest.raises(ValueError, match="in a request, found 1600"):
        client.transact(Transaction([], [Put(prefix + b"%d" % n, b"x" * 800_000) for n in range(2)]))
    client.transact(Transaction([], [Delete(prefix + b"a")]))


def test_etcd_accepts_the_largest_request_that_is_sent(client, prefix):
    for size in range(REQUEST_BYTES - 700, REQUEST_BYTES, 50):
        try:
            put(client, prefix + b"a", b"x" * size)
        except ValueError:
            break
    else:
        pytest.fail("nothing was too large")
    client.transact(Transaction([], [Delete(prefix + b"a")]))


def test_answers_may_be_larger_than_requests(client, prefix):
    for number in range(5):
        put(client, prefix + b"%d" % number, b"x" * 1_000_000)
    assert sum(len(pair.value) for pair in client.read(prefix, end_of(prefix)).values) == 5_000_000
    client.transact(Transaction([], [Delete(prefix, end_of(prefix))]))


def test_refusal_quotes_etcd(client, prefix):
    with pytest.raises(EtcdRefused, match=r"etcd 127\.0\.0\.1:\d+ rejects a request: etcdserver: duplicate key"):
        client.transact(Transaction([], [Put(prefix, b"1"), Put(prefix, b"2")]))


def test_closed_client_raises_etcd_closed(etcd):
    client = EtcdClient([etcd.endpoint], timeout=60)
    client.read(b"a")
    client.close()
    client.close()
    calls = (lambda: client.read(b"a"), lambda: client.grant(5), lambda: client.renew(1), lambda: client.revoke(1))
    for call in (*calls, lambda: put(client, b"a", b"")):
        with pytest.raises(EtcdClosed, match=f"the client for {etcd.endpoint} is closed"):
            call()


def test_close_ends_waiting_calls(listener, background, eventually):
    client = EtcdClient([f"127.0.0.1:{listener}"], timeout=60, attempt=60)
    waiting = [background(lambda: client.read(b"a")) for _ in range(3)]
    eventually(lambda: client.members.current().fault)
    client.close()
    for one in waiting:
        with pytest.raises(EtcdClosed):
            one.result(60)


def test_close_ends_call_to_a_paused_server(servers, background, eventually):
    server = servers.single()
    client = EtcdClient([server.endpoint], timeout=60, attempt=60)
    client.read(b"a")
    server.stop()
    asked = threading.Event()

    def ask():
        asked.set()
        client.read(b"a")

    waiting = background(ask)
    assert asked.wait(60)
    client.close()
    with pytest.raises(EtcdClosed):
        waiting.result(60)


def test_closed_clients_leave_no_threads_and_no_files(etcd):
    def live():
        return threading.active_count(), psutil.Process().num_fds(), psutil.Process().num_threads()

    def use():
        for _ in range(20):
            client = EtcdClient([etcd.endpoint], timeout=60)
            client.read(b"a")
            client.close()

    use()
    before = live()
    for _ in range(5):
        use()
    grown = [now - then for now, then in zip(live(), before, strict=True)]
    assert max(grown) < 50, f"100 clients left behind threads, files, threads of the kernel: {grown}"


def test_client_requires_an_endpoint():
    with pytest.raises(ValueError, match="at least one endpoint"):
        EtcdClient([])


def test_where_lists_all_endpoints():
    client = EtcdClient(["a:1", "[::1]:2"])
    assert client.where == "a:1, [::1]:2"
    client.close()
