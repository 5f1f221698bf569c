"""Watches on a real server: what they tell, and how they end."""

import threading
import time

import pytest
from elastic_etcd.client.errors import EtcdClosed
from elastic_etcd.client.values import Delete, Put, Transaction, end_of
from watching import LONG, gather, put


def watch_threads():
    return [thread for thread in threading.enumerate() if "etcd watch" in thread.name]


# What it tells


def test_the_first_news_says_that_it_stands(etcd, connect, prefix):
    client = connect(etcd.endpoint)
    before = put(client, prefix)
    news = client.watch(prefix).next(LONG)
    assert (news.events, news.resync) == ((), False)
    assert news.revision >= before


def test_a_put_and_a_deletion_are_told(etcd, connect, prefix):
    client = connect(etcd.endpoint)
    watch = client.watch(prefix + b"a")
    watch.next(LONG)
    revision = put(client, prefix + b"a", b"1")
    news = watch.next(LONG)
    assert news.revision == revision
    assert [(event.deleted, event.pair.key, event.pair.value) for event in news.events] == [
        (False, prefix + b"a", b"1")
    ]
    client.transact(Transaction((), (Delete(prefix + b"a"),)))
    [event] = watch.next(LONG).events
    assert (event.deleted, event.pair.key, event.pair.value) == (True, prefix + b"a", b"")


def test_one_key_is_not_its_neighbour(etcd, connect, prefix):
    client = connect(etcd.endpoint)
    watch = client.watch(prefix + b"a")
    watch.next(LONG)
    put(client, prefix + b"ab", b"not ours")
    put(client, prefix + b"a", b"ours")
    assert [event.pair.value for event in gather(watch, b"ours")] == [b"ours"]


def test_a_range_is_told_in_the_order_it_happened(etcd, connect, prefix):
    client = connect(etcd.endpoint)
    watch = client.watch(prefix, end_of(prefix))
    watch.next(LONG)
    for number in (3, 1, 2):
        put(client, prefix + b"%d" % number, b"%d" % number)
    assert [event.pair.value for event in gather(watch, b"2")] == [b"3", b"1", b"2"]


def test_what_one_transaction_did_comes_at_once(etcd, connect, prefix):
    client = connect(etcd.endpoint)
    watch = client.watch(prefix, end_of(prefix))
    watch.next(LONG)
    client.transact(Transaction((), tuple(Put(prefix + b"%03d" % number, b"") for number in range(100))))
    assert len(watch.next(LONG).events) == 100


def test_it_begins_after_the_revision_asked_for(etcd, connect, prefix):
    client = connect(etcd.endpoint)
    first, *_ = [put(client, prefix, b"%d" % number) for number in range(5)]
    watch = client.watch(prefix, after=first)
    assert watch.next(LONG).revision == first
    assert [event.pair.value for event in gather(watch, b"4")] == [b"1", b"2", b"3", b"4"]


def test_next_waits_no_longer_than_asked(etcd, connect, prefix):
    watch = connect(etcd.endpoint).watch(prefix)
    watch.next(LONG)
    begun = time.monotonic()
    assert watch.next(0.3) is None
    assert 0.3 <= time.monotonic() - begun < LONG
    assert watch.next(0.0) is None


# Its end


def test_close_lets_next_come_back_at_once(etcd, connect, prefix, background):
    watch = connect(etcd.endpoint).watch(prefix)
    watch.next(LONG)
    blocked = background(lambda: watch.next(10 * LONG))
    watch.close()
    watch.close()
    assert blocked.result(LONG) is None
    assert watch.next(LONG) is None


def test_close_is_no_fault_of_the_member(etcd, connect, prefix, eventually):
    eventually(lambda: not watch_threads())
    client = connect(f"{etcd.endpoint},localhost:{etcd.port}", attempt=LONG)
    told = []
    client.members.follow(told.append)
    for _ in range(20):
        watch = client.watch(prefix)
        watch.next(LONG)
        watch.close()
    eventually(lambda: not watch_threads())
    assert told == [], "the client has left it"


def test_closing_the_client_lets_next_come_back_with_an_error(etcd, connect, prefix, background):
    client = connect(etcd.endpoint)
    watch = client.watch(prefix)
    watch.next(LONG)
    blocked = background(lambda: watch.next(10 * LONG))
    client.close()
    with pytest.raises(EtcdClosed):
        blocked.result(LONG)
    with pytest.raises(EtcdClosed):
        watch.next(LONG)
    watch.close()
    assert watch.next(LONG) is None


def test_a_hundred_watches_leave_no_thread_behind(etcd, connect, prefix, eventually):
    eventually(lambda: not watch_threads())  # those of other tests end by themselves
    client = connect(etcd.endpoint)
    client.watch(prefix).next(LONG)  # whatever gRPC itself needs runs by now
    before = threading.active_count()
    watches = [client.watch(prefix + b"%d" % number) for number in range(100)]
    for watch in watches:
        assert watch.next(LONG) is not None
    assert len(watch_threads()) == 101
    for watch in watches:
        watch.close()
    eventually(lambda: len(watch_threads()) == 1)
    eventually(lambda: threading.active_count() <= before)


def test_closed_watches_are_a_burden_to_nobody(servers, connect, prefix, eventually):
    server = servers.single()  # the shared one may still be letting go of those of other tests
    client = connect(server.endpoint)
    client.watch(prefix).next(LONG)
    before = server.metric("etcd_debugging_mvcc_watcher_total")
    watches = [client.watch(prefix) for _ in range(20)]
    for watch in watches:
        watch.next(LONG)
    assert server.metric("etcd_debugging_mvcc_watcher_total") == before + 20
    for watch in watches:
        watch.close()
    eventually(lambda: server.metric("etcd_debugging_mvcc_watcher_total") <= before)
