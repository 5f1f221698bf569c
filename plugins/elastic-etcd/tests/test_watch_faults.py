"""Watches go on when their member dies, stops or forgets, and say so when they may not."""

import time

import pytest
from cluster import User
from elastic_etcd.client import channel
from elastic_etcd.client.channel import Security
from elastic_etcd.client.errors import EtcdDenied, EtcdUnreachable
from elastic_etcd.client.login import Login
from elastic_etcd.client.values import Get, Put, Transaction, end_of
from watching import LONG, gather, keep_putting, patiently, put

pytestmark = pytest.mark.nightly


def raised_with(watch, words):
    """Wait until it raises EtcdUnreachable with these words; that nobody answers may be told before the cause is known,
    where the machine stalls."""
    said, deadline = "", time.monotonic() + LONG
    while words not in said:
        assert time.monotonic() < deadline, f"expected {words!r}, found {said!r}"
        with pytest.raises(EtcdUnreachable) as caught:
            watch.next(LONG)
        said = str(caught.value)


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


def expect_all(told, values):
    """Every write was told, and once. A value whose write was not answered was written again, and is told as often."""
    revisions = [event.pair.mod_revision for event in told]
    assert revisions == sorted(set(revisions)), "told twice"
    assert list(dict.fromkeys(event.pair.value for event in told)) == values, "lost"


def test_what_happened_while_it_was_cut_off_is_told(cluster, connect, prefix):
    leader, follower, other = cluster.by_role()
    watch = connect(follower.endpoint).watch(prefix)
    watch.next(LONG)
    writer = connect(f"{leader.endpoint},{other.endpoint}")
    keep_putting(writer, prefix, [b"0"])
    follower.kill()
    keep_putting(writer, prefix, [b"%d" % number for number in range(1, 30)], pause=0)
    follower.start()
    expect_all(gather(watch, b"29"), [b"%d" % number for number in range(30)])


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_it_leaves_a_leader_that_died_or_stopped(cluster, connect, prefix, background, fault):
    leader, *others = cluster.by_role()
    client = connect(f"{leader.endpoint},{others[0].endpoint},{others[1].endpoint}")
    watch = client.watch(prefix)
    watch.next(LONG)
    values = [b"%d" % number for number in range(40)]
    keep_putting(client, prefix, values[:10], pause=0)
    getattr(leader, fault)()
    writing = background(lambda: keep_putting(client, prefix, values[10:], pause=0.01))
    told = gather(watch, values[-1], 2 * LONG)
    writing.result(LONG)
    expect_all(told, values)


def test_a_single_server_that_is_stopped_is_told_and_survived(servers, connect, prefix):
    server = servers.single()
    server.stop()
    watch = connect(server.endpoint, timeout=3.0).watch(prefix)
    raised_with(watch, "not answer")
    server.cont()
    begun = time.monotonic()
    while patiently(watch) is None:
        assert time.monotonic() - begun < LONG


def test_a_stopped_member_is_left_without_a_call_that_says_so(cluster, connect, prefix):
    leader, follower, other = cluster.by_role()
    watch = connect(f"{follower.endpoint},{other.endpoint}").watch(prefix)
    watch.next(LONG)
    follower.stop()
    put(connect(leader.endpoint), prefix, b"news")
    gather(watch, b"news")


def test_a_member_that_others_found_bad_is_left_at_once(cluster, connect, prefix, monkeypatch):
    """And not when it turns out that nothing comes from it, which this connection does not ask about."""
    kept = tuple((name, value) for name, value in channel.OPTIONS if "keepalive" not in name)
    monkeypatch.setattr(channel, "OPTIONS", kept)
    leader, follower, other = cluster.by_role()
    client = connect(f"{follower.endpoint},{other.endpoint},{leader.endpoint}", timeout=LONG)
    watch = client.watch(prefix)
    watch.next(LONG)
    follower.stop()
    client.read(prefix)
    keep_putting(client, prefix, [b"news"], pause=0)
    gather(watch, b"news")


def test_a_rolling_restart_loses_nothing(cluster, connect, prefix, background):
    client = connect(cluster.endpoints)
    watch = client.watch(prefix)
    watch.next(LONG)
    values = [b"%d" % number for number in range(100)]
    writing = background(lambda: keep_putting(client, prefix, values))
    for member in cluster.members:
        member.restart()
    writing.result(2 * LONG)
    expect_all(gather(watch, values[-1]), values)


def test_a_lost_quorum_is_told_and_survived(cluster, connect, prefix):
    client = connect(cluster.endpoints, timeout=2.0)
    watch = client.watch(prefix)
    while patiently(watch) is None:
        pass
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
    raised_with(watch, "connection refused")
    for _ in range(3):
        begun, cpu = time.monotonic(), time.process_time()
        with pytest.raises(EtcdUnreachable, match="connection refused"):
            watch.next(LONG)
        seconds = time.monotonic() - begun
        assert seconds < LONG
        assert time.process_time() - cpu < 0.5 * max(seconds, 1)
    server.start()
    while (news := patiently(watch)) is None:
        pass
    assert news.events == ()


def test_a_socket_that_never_answers(listener, connect, prefix):
    watch = connect(f"127.0.0.1:{listener}", timeout=1.5).watch(prefix)
    with pytest.raises(EtcdUnreachable, match="answer"):
        watch.next(LONG)


def test_the_first_endpoint_never_answers(etcd, listener, connect, prefix):
    watch = connect(f"127.0.0.1:{listener},{etcd.endpoint}", timeout=10 * LONG).watch(prefix)
    assert watch.next(LONG).events == ()


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
        news = patiently(watch)
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


def test_over_tls_with_a_client_certificate(servers, connect, certificates, prefix):
    server = servers.single(certificates=certificates, client_certificates=True)
    security = Security(certificates.ca, certificates.client_cert, certificates.client_key)
    client = connect(server.endpoint, security=security)
    watch = client.watch(prefix)
    watch.next(LONG)
    put(client, prefix, b"1")
    assert gather(watch, b"1")


def test_plain_text_against_tls_is_told(servers, connect, certificates, prefix):
    watch = connect(servers.single(certificates=certificates).endpoint, timeout=2.0).watch(prefix)
    raised_with(watch, "https")
