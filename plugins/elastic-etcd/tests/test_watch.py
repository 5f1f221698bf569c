"""Watches on real servers: what they tell, and that they go on when their member dies, stops, or forgets."""

import threading
import time

import pytest
from cluster import User
from elastic_etcd.client.client import EtcdClient
from elastic_etcd.client.errors import EtcdClosed, EtcdDenied, EtcdUnreachable
from elastic_etcd.client.login import Login
from elastic_etcd.client.values import Delete, Get, Put, Transaction, end_of

LONG = 30.0


@pytest.fixture
def connect():
    made = []

    def make(endpoints, **options):
        made.append(EtcdClient(endpoints.split(","), **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


def put(client, key, value=b"x"):
    return client.transact(Transaction((), (Put(key, value),))).revision


def keep_putting(client, key, values, pause=0.05):
    """Write the values, each until it was taken; a watch tells each of them at least once."""
    for value in values:
        while True:
            try:
                put(client, key, value)
                break
            except EtcdUnreachable:
                pass
        time.sleep(pause)


def gather(watch, wanted, timeout=LONG):
    """The events of a watch until there was one of this value."""
    events, deadline = [], time.monotonic() + timeout
    while not events or events[-1].pair.value != wanted:
        assert time.monotonic() < deadline, f"{len(events)} events, none of them {wanted}"
        try:
            news = watch.next(1.0)
        except EtcdUnreachable:
            continue
        assert news is None or not news.resync
        events += news.events if news else ()
    return events


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
    assert 0.3 <= time.monotonic() - begun < 2
    assert watch.next(0.0) is None


# Its end


def test_close_lets_next_come_back_at_once(etcd, connect, prefix, background):
    watch = connect(etcd.endpoint).watch(prefix)
    watch.next(LONG)
    blocked = background(lambda: watch.next(LONG))
    watch.close()
    watch.close()
    assert blocked.result(2) is None
    assert watch.next(LONG) is None


def test_closing_the_client_lets_next_come_back_with_an_error(etcd, connect, prefix, background):
    client = connect(etcd.endpoint)
    watch = client.watch(prefix)
    watch.next(LONG)
    blocked = background(lambda: watch.next(LONG))
    client.close()
    with pytest.raises(EtcdClosed):
        blocked.result(2)
    with pytest.raises(EtcdClosed):
        watch.next(LONG)
    watch.close()
    assert watch.next(LONG) is None


def test_a_hundred_watches_leave_no_thread_behind(etcd, connect, prefix, eventually):
    client = connect(etcd.endpoint)
    client.watch(prefix).next(LONG)  # whatever gRPC itself needs runs by now
    before = threading.active_count()
    watches = [client.watch(prefix + b"%d" % number) for number in range(100)]
    for watch in watches:
        assert watch.next(LONG) is not None
    assert len(watch_threads()) == 101
    for watch in watches:
        watch.close()
    eventually(lambda: threading.active_count() <= before)
    assert len(watch_threads()) == 1


def test_closed_watches_are_a_burden_to_nobody(etcd, connect, prefix, eventually):
    client = connect(etcd.endpoint)
    client.watch(prefix).next(LONG)
    before = etcd.metric("etcd_debugging_mvcc_watcher_total")
    watches = [client.watch(prefix) for _ in range(20)]
    for watch in watches:
        watch.next(LONG)
    assert etcd.metric("etcd_debugging_mvcc_watcher_total") == before + 20
    for watch in watches:
        watch.close()
    eventually(lambda: etcd.metric("etcd_debugging_mvcc_watcher_total") <= before)


# Faults


def test_it_goes_on_when_its_server_is_killed_and_comes_back(servers, connect, prefix):
    server = servers.single()
    client = connect(server.endpoint)
    watch = client.watch(prefix)
    watch.next(LONG)
    put(client, prefix, b"before")
    server.kill()
    server.start()
    keep_putting(client, prefix, [b"after"])
    values = [event.pair.value for event in gather(watch, b"after")]
    assert values[:2] == [b"before", b"after"]
    assert set(values) == {b"before", b"after"}  # the second may have been written more than once


def test_what_happened_while_it_was_cut_off_is_told(cluster, connect, prefix):
    leader, follower, other = cluster.leader(), *cluster.followers()
    watch = connect(follower.endpoint).watch(prefix)
    watch.next(LONG)
    writer = connect(f"{leader.endpoint},{other.endpoint}")
    keep_putting(writer, prefix, [b"0"])
    follower.kill()
    keep_putting(writer, prefix, [b"%d" % number for number in range(1, 30)], pause=0)
    follower.start()
    assert [event.pair.value for event in gather(watch, b"29")] == [b"%d" % number for number in range(30)]


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_it_leaves_a_leader_that_died_or_stopped(cluster, connect, prefix, background, fault):
    leader, *others = cluster.leader(), *cluster.followers()
    client = connect(f"{leader.endpoint},{others[0].endpoint},{others[1].endpoint}")
    watch = client.watch(prefix)
    watch.next(LONG)
    values = [b"%d" % number for number in range(40)]
    keep_putting(client, prefix, values[:10], pause=0)
    getattr(leader, fault)()
    begun = time.monotonic()
    writing = background(lambda: keep_putting(client, prefix, values[10:], pause=0.01))
    told = gather(watch, values[-1])
    assert time.monotonic() - begun < 10
    writing.result()
    revisions = [event.pair.mod_revision for event in told]
    assert revisions == sorted(set(revisions)), "told twice"
    assert list(dict.fromkeys(event.pair.value for event in told)) == values, "lost"


def test_a_stopped_member_is_left_without_a_call_that_says_so(cluster, connect, prefix):
    leader, follower, other = cluster.leader(), *cluster.followers()
    watch = connect(f"{follower.endpoint},{other.endpoint}").watch(prefix)
    watch.next(LONG)
    follower.stop()
    begun = time.monotonic()
    put(connect(leader.endpoint), prefix, b"news")
    gather(watch, b"news")
    assert time.monotonic() - begun < 11


def test_a_member_that_others_found_bad_is_left_at_once(cluster, connect, prefix):
    leader, follower, other = cluster.leader(), *cluster.followers()
    client = connect(f"{follower.endpoint},{other.endpoint},{leader.endpoint}")
    watch = client.watch(prefix)
    watch.next(LONG)
    follower.stop()
    begun = time.monotonic()
    client.read(prefix)
    put(client, prefix, b"news")
    gather(watch, b"news")
    assert time.monotonic() - begun < 4


def test_a_rolling_restart_loses_nothing(cluster, connect, prefix, background):
    client = connect(cluster.endpoints)
    watch = client.watch(prefix)
    watch.next(LONG)
    values = [b"%d" % number for number in range(100)]
    writing = background(lambda: keep_putting(client, prefix, values))
    for member in cluster.members:
        member.restart()
    told = gather(watch, values[-1])
    writing.result()
    revisions = [event.pair.mod_revision for event in told]
    assert revisions == sorted(set(revisions)), "told twice"
    assert list(dict.fromkeys(event.pair.value for event in told)) == values, "lost"


def test_a_lost_quorum_is_told_and_survived(cluster, connect, prefix):
    client = connect(cluster.endpoints, timeout=2.0)
    watch = client.watch(prefix)
    watch.next(LONG)
    stopped = cluster.members[:2]
    for member in stopped:
        member.stop()
    with pytest.raises(EtcdUnreachable, match="quorum"):
        while True:
            watch.next(LONG)
    for member in stopped:
        member.cont()
    keep_putting(client, prefix, [b"healed"])
    assert gather(watch, b"healed")


def test_nobody_there_is_told_again_and_again_and_costs_next_to_nothing(servers, connect, prefix):
    server = servers.single()
    server.kill()
    watch = connect(server.endpoint, timeout=1.0).watch(prefix)
    for _ in range(3):
        begun, cpu = time.monotonic(), time.process_time()
        with pytest.raises(EtcdUnreachable, match="connection refused"):
            watch.next(LONG)
        assert time.monotonic() - begun < 2
        assert time.process_time() - cpu < 0.5
    server.start()
    while (news := _patiently(watch)) is None:
        pass
    assert news.events == ()


def _patiently(watch):
    try:
        return watch.next(1.0)
    except EtcdUnreachable:
        return None


def test_a_socket_that_never_answers(listener, connect, prefix):
    watch = connect(f"127.0.0.1:{listener}", timeout=1.5).watch(prefix)
    begun = time.monotonic()
    with pytest.raises(EtcdUnreachable):
        watch.next(LONG)
    assert time.monotonic() - begun < 4


def test_the_first_endpoint_never_answers(etcd, listener, connect, prefix):
    watch = connect(f"127.0.0.1:{listener},{etcd.endpoint}").watch(prefix)
    begun = time.monotonic()
    assert watch.next(LONG).events == ()
    assert time.monotonic() - begun < 5


# What the server has forgotten


def test_compaction_means_reading_again(etcd, connect, prefix):
    client = connect(etcd.endpoint)
    revisions = [put(client, prefix, b"%d" % number) for number in range(10)]
    etcd.call("/v3/kv/compaction", revision=str(revisions[-2]), physical=True)
    watch = client.watch(prefix, after=revisions[0])
    news = watch.next(LONG)
    while not news.resync:
        news = watch.next(LONG)
    assert news.revision >= revisions[-1]
    assert news.events == ()
    put(client, prefix, b"after")
    assert [event.pair.value for event in gather(watch, b"after")] == [b"after"]


def test_a_server_that_lost_its_data_means_reading_again(servers, connect, prefix, tmp_path):
    server = servers.single()
    client = connect(server.endpoint)
    for number in range(5):
        put(client, prefix, b"%d" % number)
    watch = client.watch(prefix)
    watch.next(LONG)
    server.lose_data()
    server.start()
    news = None
    while news is None or not news.resync:
        news = _patiently(watch)
    keep_putting(client, prefix, [b"anew"])
    assert gather(watch, b"anew")


# Permission


ALICE = User("alice", "her-password", b"/alice/")


def test_without_permission_it_is_refused(servers, connect):
    client = connect(servers.single(users=(ALICE,)).endpoint, login=Login(ALICE.name, ALICE.password))
    client.watch(b"/alice/a").next(LONG)
    client.watch(b"/alice/", end_of(b"/alice/")).next(LONG)
    watch = client.watch(b"/bob/")
    for _ in range(2):
        with pytest.raises(EtcdDenied, match="permission") as raised:
            watch.next(LONG)
    assert ALICE.password not in str(raised.value)


def test_a_wrong_password_or_none_is_refused(servers, connect):
    server = servers.single(users=(ALICE,))
    for login in (Login(ALICE.name, "a-guess"), None):
        with pytest.raises(EtcdDenied) as raised:
            connect(server.endpoint, login=login).watch(b"/alice/a").next(LONG)
        assert "a-guess" not in str(raised.value)


def test_a_new_watch_with_a_token_that_was_forgotten(servers, connect):
    server = servers.single(users=(ALICE,))
    client = connect(server.endpoint, login=Login(ALICE.name, ALICE.password))
    watch = client.watch(b"/alice/a")
    watch.next(LONG)
    server.restart()  # which forgets its tokens
    another = client.watch(b"/alice/b")
    another.next(LONG)
    assert client.transact(
        Transaction((), (Put(b"/alice/a", b"1"), Put(b"/alice/b", b"1"), Get(b"/alice/a")))
    ).succeeded
    assert gather(watch, b"1")
    assert gather(another, b"1")
