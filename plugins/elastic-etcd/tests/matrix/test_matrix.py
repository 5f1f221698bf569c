"""The client's operations with the installed protobuf, on a real server.

tox's environments `etcd-protobuf3` to `etcd-protobuf7` run this on each supported protobuf.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from elastic_etcd.client.errors import EtcdLeaseGone
from elastic_etcd.client.lease_keeper import LeaseKeeper
from elastic_etcd.client.messages import rpc
from elastic_etcd.client.reflector import Reflector
from elastic_etcd.client.values import Compare, Delete, Field, Get, Put, Transaction, absent, end_of

LONG = 60.0
WANTED = os.environ.get("ELASTIC_TEST_PROTOBUF")


class RecordedEvents(Reflector):
    """Keeps the events, as (deleted, value)."""

    def __init__(self, *where, revision):
        super().__init__(*where, revision=revision)
        self.events = []

    def _apply(self, pair, deleted):
        self.events.append((deleted, pair.value))


def protobuf():
    import google.protobuf
    from google.protobuf.internal import api_implementation

    return google.protobuf.__version__, api_implementation.Type()


@pytest.mark.skipif(not WANTED, reason="no version is asked for: ELASTIC_TEST_PROTOBUF")
def test_installed_protobuf_is_the_requested_one():
    import grpc

    version, implementation = protobuf()
    print(f"protobuf {version} ({implementation}), grpcio {grpc.__version__}, Python {sys.version.split()[0]}")
    assert version.split(".")[0] == WANTED


def test_protobuf_implementation_variable_is_unset():
    assert "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION" not in os.environ


def test_put_value_is_read_back(client, prefix):
    client.transact(Transaction((), (Put(prefix + b"b", b"\x00\xff"), Put(prefix + b"a", b""))))
    found = client.read(prefix, end_of(prefix))
    assert {pair.key: pair.value for pair in found.values} == {prefix + b"a": b"", prefix + b"b": b"\x00\xff"}
    assert found.values[0].mod_revision == found.revision


def test_transaction_supports_every_condition_and_operation(client, prefix):
    client.transact(Transaction((absent(prefix),), (Put(prefix, b"1"),)))
    pair = client.read(prefix).first
    conditions = [
        Compare(prefix, Field.VALUE, b"1"),
        Compare(prefix, Field.CREATED, pair.create_revision),
        Compare(prefix, Field.MODIFIED, pair.mod_revision),
        Compare(prefix, Field.VERSION, 1),
        Compare(prefix, Field.LEASE, 0),
    ]
    done = client.transact(Transaction(conditions, (Get(prefix), Put(prefix, b"2")), (Delete(prefix),)))
    assert done.succeeded
    assert done.ranges[0].first.value == b"1"
    refused = client.transact(Transaction(conditions, (Put(prefix, b"3"),), (Delete(prefix),)))
    assert not refused.succeeded
    assert client.read(prefix).first is None


def test_lease_is_renewed_and_ends_with_its_keys(client, prefix):
    lease = client.grant(60)
    client.transact(Transaction((), (Put(prefix, b"v", lease.id),)))
    assert client.read(prefix).first.lease == lease.id
    assert client.renew(lease.id) == lease.ttl == 60
    client.revoke(lease.id)
    assert client.read(prefix).first is None
    with pytest.raises(EtcdLeaseGone):
        client.renew(lease.id)


def test_keeper_replaces_a_lost_lease(client):
    losses = []
    keeper = LeaseKeeper(client, 60, lambda: losses.append(lease))
    lease = keeper.ensure()
    client.revoke(lease)
    keeper.gone(lease)
    assert keeper.ensure() != lease
    keeper.release()
    assert losses == [lease]


def test_watch_reports_writes_and_deletions(client, prefix):
    before = client.read(prefix).revision
    client.transact(Transaction((), (Put(prefix + b"k", b"v"),)))
    keys = RecordedEvents(client, prefix, end_of(prefix), revision=before)
    try:
        assert keys.wait_for(lambda: keys.events, LONG)
        client.transact(Transaction((), (Delete(prefix + b"k"),)))
        assert keys.wait_for(lambda: len(keys.events) == 2, LONG)
        assert keys.events == [(False, b"v"), (True, b"")]
    finally:
        keys.close()


THEIRS = """
def theirs():
    try:
        import etcd3
    except TypeError:  # from protobuf 4 on, without the variable that we do not want
        return "refuses"
    return etcd3.etcdrpc.RangeRequest(key=b"k").SerializeToString()
"""
OURS = """
from elastic_etcd.client.messages import rpc
def ours():
    return rpc().range.filled(key=b"k")
"""


@pytest.mark.integration
@pytest.mark.parametrize("order", ["ours(), theirs(), ours()", "theirs(), ours(), theirs()"])
def test_our_messages_do_not_affect_imports_of_etcd3(order):
    def run(program):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        return done.stdout

    alone = run(f"{THEIRS}\nprint(theirs())").strip()
    said = run(f"{THEIRS}{OURS}\nprint([str(found) for found in ({order})])").strip()
    asked = order.replace("ours()", repr(str(rpc().range.filled(key=b"k"))))
    assert said == "[" + asked.replace("theirs()", repr(alone)) + "]"
    assert alone == ("refuses" if int(protobuf()[0].split(".")[0]) >= 4 else str(b"\n\x01k"))
