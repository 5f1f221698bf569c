"""Keys that are listed and watched on a real server, and the end of a watch."""

import threading
import time

import pytest
from elastic_etcd.client.errors import EtcdClosed
from elastic_etcd.client.messages import rpc
from elastic_etcd.client.reflector import Reflector, reached
from elastic_etcd.client.values import Delete, Put, Range, Transaction, end_of
from watching import LONG, Followed, put


def watch_threads():
    return [thread for thread in threading.enumerate() if "etcd watch" in thread.name]


# Lists and events


def test_existing_keys_are_listed_first(etcd, connect, prefix):
    client = connect(etcd.endpoint)
    before = put(client, prefix, b"1")
    keys = Followed(client, prefix).established()
    assert (keys.pairs, keys.events) == ({prefix: b"1"}, [])
    assert [found.revision >= before for found in keys.lists] == [True]


def test_events_arrive_in_order(etcd, connect, prefix):
    client = connect(etcd.endpoint)
    keys = Followed(client, prefix, end_of(prefix)).established()
    for number in (3, 1, 2):
        put(client, prefix + b"%d" % number, b"%d" % number)
    client.transact(Transaction((), tuple(Put(prefix + b"%03d" % number, b"") for number in range(100))))
    keys.until(lambda: len(keys.events) == 103)
    assert keys.values[:3] == [b"3", b"1", b"2"]


def test_watch_from_a_known_revision_lists_nothing(etcd, connect, prefix):
    client = connect(etcd.endpoint)
    first, *_ = [put(client, prefix, b"%d" % number) for number in range(5)]
    keys = Followed(client, prefix, revision=first)
    keys.until(lambda: len(keys.events) == 4)
    assert (keys.values, keys.lists) == ([b"1", b"2", b"3", b"4"], [])


def test_deletions_are_events(etcd, connect, prefix):
    client = connect(etcd.endpoint)
    keys = Followed(client, prefix + b"a", revision=put(client, prefix))
    client.transact(Transaction((), (Put(prefix + b"a", b"\x00\xff"),)))
    client.transact(Transaction((), (Delete(prefix + b"a"),)))
    keys.until(lambda: len(keys.events) == 2)
    assert [(pair.value, deleted) for pair, deleted in keys.events] == [(b"\x00\xff", False), (b"", True)]


def test_wait_ends_at_its_timeout(etcd, connect, prefix):
    keys = Followed(connect(etcd.endpoint), prefix).established()
    begun = time.monotonic()
    assert not keys.wait_for(lambda: False, 0.3)
    assert 0.3 <= time.monotonic() - begun < LONG
    assert not keys.wait_for(lambda: False, 0.0)


# Which of a list and a stream is newer


class FakeLister(Reflector):
    """Lists what the test provides; `during` is called before the answer arrives."""

    def __init__(self):
        super().__init__(None, b"")
        self.answer, self.during, self.known = Range(0), lambda: None, []

    def reads(self, revision, during=lambda: None):
        self.answer, self.during = Range(revision), during
        self.read()
        return self.known[-1]

    def _list(self):
        answer, during = self.answer, self.during
        during()
        return answer

    def _replace(self, found):
        self.known.append(found.revision)


def test_older_list_is_ignored():
    keys = FakeLister()
    assert keys.reads(5) == 5
    assert keys.reads(6, during=lambda: keys.reads(8)) == 8


def test_list_older_than_known_means_data_loss():
    keys = FakeLister()
    assert keys.reads(64) == 64
    assert keys.reads(4) == 4
    assert keys.reads(5) == 5


def test_concurrent_lists_during_a_loss_keep_the_newer():
    keys = FakeLister()
    keys.reads(64)
    assert keys.reads(4, during=lambda: keys.reads(6)) == 6


def test_late_list_from_before_a_loss_is_read_again():
    keys = FakeLister()
    keys.reads(64)
    assert keys.reads(70, during=lambda: keys.reads(4)) == 4


# Messages of a stream


def message(revision, **shown):
    """One, with events at the revisions `at`."""
    shown["events"] = [{"kv": {"key": b"k", "mod_revision": at}} for at in shown.pop("at", ())]
    return type(rpc().watch.parse(b""))(header={"revision": revision}, **shown)


def test_stream_reaches_the_revision_of_its_last_event():
    assert reached(message(99, at=(11, 12))) == 12  # the server is at 99, and has more to send
    assert reached(message(40)) == 40
    assert reached(message(40, created=True)) == 0


# Close


def test_close_ends_wait(etcd, connect, prefix, background):
    keys = Followed(connect(etcd.endpoint), prefix).established()
    blocked = background(lambda: keys.wait_for(lambda: False, 10 * LONG))
    keys.close()
    keys.close()
    assert blocked.result(LONG) is False
    assert not keys.wait_for(lambda: True, LONG)


def test_close_does_not_blame_the_member(etcd, connect, prefix, eventually):
    eventually(lambda: not watch_threads())
    client = connect(f"{etcd.endpoint},localhost:{etcd.port}", attempt=LONG)
    failed = []
    with client.members.followed(failed.append):
        for _ in range(20):
            Followed(client, prefix).established().close()
        eventually(lambda: not watch_threads())
    assert failed == [], "the client has left its member"


def test_closed_client_ends_wait_with_an_error(etcd, connect, prefix, background):
    client = connect(etcd.endpoint)
    keys = Followed(client, prefix).established()
    blocked = background(lambda: keys.wait_for(lambda: False, 10 * LONG))
    client.close()
    with pytest.raises(EtcdClosed):
        blocked.result(LONG)
    with pytest.raises(EtcdClosed):
        keys.wait_for(lambda: False, LONG)
    keys.close()
    assert not keys.wait_for(lambda: True, LONG)


def test_forgotten_range_is_followed_again_on_wait(etcd, connect, prefix, eventually):
    client = connect(etcd.endpoint)
    keys = Followed(client, prefix).established()
    keys.forget()
    eventually(lambda: not watch_threads())
    put(client, prefix, b"meanwhile")
    keys.until(lambda: keys.pairs == {prefix: b"meanwhile"})


def test_forget_ends_wait(etcd, connect, prefix, background):
    keys = Followed(connect(etcd.endpoint), prefix).established()
    blocked = background(lambda: keys.wait_for(lambda: False, 10 * LONG))
    keys.forget()
    assert blocked.result(LONG) is False


def test_hundred_closed_reflectors_leave_no_threads(etcd, connect, prefix, eventually):
    eventually(lambda: not watch_threads())  # watches of other tests are ending
    client = connect(etcd.endpoint)
    Followed(client, prefix).established()  # starts gRPC's own threads
    before = threading.active_count()
    many = [Followed(client, prefix + b"%d" % number) for number in range(100)]
    for keys in many:
        keys.established()
    assert len(watch_threads()) == 101
    for keys in many:
        keys.close()
    eventually(lambda: len(watch_threads()) == 1)
    eventually(lambda: threading.active_count() <= before)


def test_closed_reflectors_leave_no_watchers_on_the_server(servers, connect, prefix, eventually):
    server = servers.single()  # the shared server may still hold watchers of other tests
    client = connect(server.endpoint)
    Followed(client, prefix).established()
    before = server.metric("etcd_debugging_mvcc_watcher_total")
    many = [Followed(client, prefix).established() for _ in range(20)]
    assert server.metric("etcd_debugging_mvcc_watcher_total") == before + 20
    for keys in many:
        keys.close()
    eventually(lambda: server.metric("etcd_debugging_mvcc_watcher_total") <= before)
