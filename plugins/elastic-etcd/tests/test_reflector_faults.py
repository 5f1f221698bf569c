"""Keys are still followed after a member dies, stops, compacts or loses data; missing permission is an error."""

import os
import signal
import threading
import time
from concurrent import futures

import grpc
import pytest
from cluster import User
from elastic_etcd.client import channel
from elastic_etcd.client.errors import EtcdDenied, EtcdUnreachable
from elastic_etcd.client.members import Login
from elastic_etcd.client.messages import rpc
from elastic_etcd.client.values import Delete, Get, Put, Transaction, end_of
from watching import LONG, Followed, keep_putting, put

pytestmark = pytest.mark.nightly


def raised_with(keys, words):
    """Wait until it raises EtcdUnreachable with `words`. On a slow machine, an error without the cause may come
    first."""
    message, deadline = "", time.monotonic() + LONG
    while words not in message:
        assert time.monotonic() < deadline, f"expected {words!r}, found {message!r}"
        try:
            keys.wait_for(lambda: False, LONG)  # also ends when the range was listed
        except EtcdUnreachable as error:
            message = str(error)


def arrives(keys, value):
    keys.until(lambda: value in keys.pairs.values())


def expect_order(keys, values):
    """No event arrived twice, and all arrived in order. A list may have replaced some of them."""
    revisions = [pair.mod_revision for pair, _ in keys.events]
    assert revisions == sorted(set(revisions)), "arrived twice"
    arrived = list(dict.fromkeys(keys.values))
    assert arrived == [value for value in values if value in arrived]


def test_changes_during_an_outage_are_seen(cluster, connect, prefix):
    leader, follower, other = cluster.by_role()
    keys = Followed(connect(follower.endpoint), prefix, end_of(prefix)).established()
    writer = connect(f"{leader.endpoint},{other.endpoint}")
    put(writer, prefix + b"gone")
    put(writer, prefix + b"kept")
    keys.until(lambda: len(keys.pairs) == 2)
    follower.kill()
    writer.transact(Transaction((), (Delete(prefix + b"gone"), Put(prefix + b"new", b"1"))))
    follower.start()
    keys.until(lambda: keys.pairs == {prefix + b"kept": b"x", prefix + b"new": b"1"})


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_watch_leaves_a_dead_or_paused_leader(cluster, connect, prefix, background, fault):
    leader, *others = cluster.by_role()
    client = connect(f"{leader.endpoint},{others[0].endpoint},{others[1].endpoint}")
    keys = Followed(client, prefix).established()
    values = [b"%d" % number for number in range(40)]
    keep_putting(client, prefix, values[:10], pause=0)
    getattr(leader, fault)()
    writing = background(lambda: keep_putting(client, prefix, values[10:], pause=0.01))
    arrives(keys, values[-1])
    writing.result(LONG)
    expect_order(keys, values)


def test_paused_single_server_is_reported_and_survived(servers, connect, prefix):
    server = servers.single()
    server.stop()
    keys = Followed(connect(server.endpoint, timeout=3.0), prefix)
    raised_with(keys, "not answer")
    server.cont()
    keys.established()


def test_idle_watch_leaves_a_paused_member(cluster, connect, prefix):
    leader, follower, other = cluster.by_role()
    keys = Followed(connect(f"{follower.endpoint},{other.endpoint}"), prefix).established()
    follower.stop()
    put(connect(leader.endpoint), prefix, b"news")
    arrives(keys, b"news")


def test_watch_leaves_member_after_a_failed_call(cluster, connect, prefix, monkeypatch):
    """Without keepalive, only the failed call shows that the member is bad."""
    kept = tuple((name, value) for name, value in channel.OPTIONS if "keepalive" not in name)
    monkeypatch.setattr(channel, "OPTIONS", kept)
    leader, follower, other = cluster.by_role()
    client = connect(f"{follower.endpoint},{other.endpoint},{leader.endpoint}", timeout=LONG)
    keys = Followed(client, prefix).established()
    follower.stop()
    client.read(prefix)
    keep_putting(client, prefix, [b"news"], pause=0)
    arrives(keys, b"news")


def test_rolling_restart_loses_no_events(cluster, connect, prefix, background):
    client = connect(cluster.endpoints)
    keys = Followed(client, prefix, end_of(prefix)).established()

    def write():
        for number in range(100):
            keep_putting(client, prefix + b"%d" % number, [b"x"])

    writing = background(write)
    for member in cluster.members:
        member.restart()
    writing.result(2 * LONG)
    keys.until(lambda: len(keys.pairs) == 100)


def test_lost_quorum_is_reported_and_survived(cluster, connect, prefix):
    client = connect(cluster.endpoints, timeout=2.0)
    keys = Followed(client, prefix).established()
    stopped = cluster.members[:2]
    for member in stopped:
        member.stop()
    with pytest.raises(EtcdUnreachable):
        keys.wait_for(lambda: False, LONG)
    for member in stopped:
        member.cont()
    keep_putting(client, prefix, [b"healed"])
    arrives(keys, b"healed")


def test_each_wait_without_server_raises_and_uses_little_cpu(servers, connect, prefix):
    server = servers.single()
    server.kill()
    keys = Followed(connect(server.endpoint, timeout=1.0), prefix)
    raised_with(keys, "connection refused")
    for _ in range(3):
        begun, cpu = time.monotonic(), time.process_time()
        with pytest.raises(EtcdUnreachable, match="connection refused"):
            keys.wait_for(lambda: False, LONG)
        seconds = time.monotonic() - begun
        assert seconds < LONG
        assert time.process_time() - cpu < 0.5 * max(seconds, 1)
    server.start()
    assert keys.established().events == []


@pytest.fixture
def watchless():
    """The endpoint of a server that answers reads, but no watches."""
    over = threading.Event()

    class Handler(grpc.GenericRpcHandler):
        def service(self, call):
            if call.method == rpc().range.path:
                return grpc.unary_unary_rpc_method_handler(lambda request, context: listed)
            return grpc.stream_stream_rpc_method_handler(lambda requests, context: iter(over.wait, True))

    listed = type(rpc().range.parse(b""))(header={"revision": 5}).SerializeToString()
    server = grpc.server(futures.ThreadPoolExecutor(20), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    over.set()
    server.stop(0).wait()


def test_watch_leaves_member_that_answers_no_watch(watchless, etcd, connect, prefix):
    client = connect(f"{watchless},{etcd.endpoint}")
    keys = Followed(client, prefix)
    put(connect(etcd.endpoint), prefix, b"1")
    arrives(keys, b"1")


def test_single_member_that_answers_no_watch_is_reported(watchless, connect, prefix):
    keys = Followed(connect(watchless, timeout=3.0), prefix)
    raised_with(keys, "could not start a watch")


# Lost changes and lost data


def test_compacted_range_is_listed_again(etcd, connect, prefix):
    client = connect(etcd.endpoint)
    revisions = [put(client, prefix, b"%d" % number) for number in range(10)]
    etcd.call("/v3/kv/compaction", revision=str(revisions[-2]), physical=True)
    keys = Followed(client, prefix, revision=revisions[0])
    arrives(keys, b"9")
    assert keys.events == []
    put(client, prefix, b"after")
    arrives(keys, b"after")


LOSSES = {
    "wiped": lambda server: server.lose_data(),
    "replaced": lambda server: server.lose_data(another=True),
    "restored": lambda server: server.restore(),
}


@pytest.mark.parametrize("newer", [False, True], ids=["behind", "ahead"])
@pytest.mark.parametrize("loss", LOSSES)
def test_store_that_lost_data_is_listed_again(servers, connect, prefix, loss, newer):
    """`ahead`: when the client reaches it again, its revision already exceeds the known one."""
    server = servers.single()
    client, writer = connect(server.endpoint), connect(server.endpoint)
    put(client, prefix + b"old")
    server.save()
    for number in range(5):
        put(client, prefix + b"lost", b"%d" % number)
    keys = Followed(client, prefix, end_of(prefix)).established()
    os.kill(server.pid, signal.SIGSTOP)  # hides its end until it has restarted
    LOSSES[loss](server)
    server.start()
    if newer:
        keep_putting(writer, prefix + b"elsewhere", [b"x"] * 20, pause=0)
    there = {prefix + b"old": b"x"} if loss == "restored" else {}
    there |= {prefix + b"elsewhere": b"x"} if newer else {}
    keys.until(lambda: keys.pairs == there)
    keep_putting(writer, prefix + b"anew", [b"1"])
    keys.until(lambda: keys.pairs == there | {prefix + b"anew": b"1"})


def test_range_is_listed_again_after_a_refusal(servers, connect, prefix):
    """The store was replaced during the outage, and its revision is greater than the known one."""

    class Refused(Followed):
        refuses = False

        def _list(self):
            if self.refuses:
                raise EtcdDenied("not now")
            return super()._list()

    server = servers.single()
    client, writer = connect(server.endpoint), connect(server.endpoint)
    put(client, prefix + b"old")
    keys = Refused(client, prefix, end_of(prefix)).established()
    keys.refuses = True
    server.lose_data(another=True)
    server.start()
    keep_putting(writer, prefix + b"new", [b"x"] * 10, pause=0)
    with pytest.raises(EtcdDenied):
        keys.wait_for(lambda: False, LONG)
    keys.refuses = False
    keys.until(lambda: keys.pairs == {prefix + b"new": b"x"})


# Permission


ALICE = User("alice", "her-password", b"/alice/")


def test_watch_without_permission_is_denied(servers, connect):
    client = connect(servers.single(users=(ALICE,)).endpoint, login=Login(ALICE.name, ALICE.password))
    Followed(client, b"/alice/a").established()
    Followed(client, b"/alice/", end_of(b"/alice/")).established()
    for revision in (0, 1):  # the list is refused, or the watch
        keys = Followed(client, b"/bob/", revision=revision)
        for _ in range(2):
            with pytest.raises(EtcdDenied, match="permission") as raised:
                keys.wait_for(lambda: False, LONG)
        assert ALICE.password not in str(raised.value)


def test_watch_with_wrong_or_no_password_is_denied(servers, connect):
    server = servers.single(users=(ALICE,))
    for login in (Login(ALICE.name, "a-guess"), None):
        for revision in (0, 1):
            with pytest.raises(EtcdDenied) as raised:
                Followed(connect(server.endpoint, login=login), b"/alice/a", revision=revision).established()
            assert "a-guess" not in str(raised.value)


def test_new_watch_logs_in_again_after_server_restart(servers, connect):
    server = servers.single(users=(ALICE,))
    client = connect(server.endpoint, login=Login(ALICE.name, ALICE.password))
    keys = Followed(client, b"/alice/a").established()
    server.restart()  # which forgets its tokens
    another = Followed(client, b"/alice/b", revision=1)
    another.established()
    assert client.transact(
        Transaction((), (Put(b"/alice/a", b"1"), Put(b"/alice/b", b"1"), Get(b"/alice/a")))
    ).succeeded
    arrives(keys, b"1")
    arrives(another, b"1")
