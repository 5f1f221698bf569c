"""The backend against a real etcd."""

import pytest
from elastic_etcd import EtcdRendezvousBackend
from elastic_etcd.backend.key_cache import NodeCache
from elastic_etcd.backend.keys import Keys
from elastic_etcd.client.client import EtcdClient
from elastic_etcd.client.values import Delete, Put, Transaction, end_of
from elastic_testing import FakeClock
from elastic_testing.waiting import eventually

from elastic_core.clock import SystemClock
from elastic_core.errors import RendezvousConnectionError, RendezvousError
from elastic_core.interfaces.backend import EntryDroppedError, ForeignStateError

LONG = 60.0


@pytest.fixture
def backend(etcd, prefix):
    """Makes backends of one job."""
    made = []

    def make(client=None, **options):
        # No thread sends heartbeats, so leases must outlast each test, however slow the machine is.
        options = {"run_id": "job", "prefix": prefix.decode(), "lease_ttl": LONG, **options}
        made.append(EtcdRendezvousBackend(client or EtcdClient([etcd.endpoint], timeout=LONG), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_all_keys_of_a_run_have_leases(backend, client, prefix):
    one = backend(run_id="a/b")
    one.set_state(b"1")
    one.announce("n/1", b"entry")
    one.beat("n/1", leading=True, look=True)
    keys = Keys(prefix.decode(), "a/b")
    found = client.read(keys.base.encode(), keys.base.encode() + b"\xff").values
    assert {pair.key for pair in found} == {keys.state, keys.lead, keys.node("n/1")}
    assert all(pair.lease for pair in found)


def test_withdrawing_a_leaders_entry_keeps_its_lead_key(backend):
    one, two = backend(), backend()
    one.announce("a/1", b"")
    one.beat("a/1", leading=True, look=True)
    two.announce("b/1", b"")
    two.get_state()
    two.withdraw("a/1")
    assert [item.key for item in two.roster()] == ["b/1"]
    assert two.get_state() is None
    assert not two.vacant


def test_departed_leader_is_noticed(backend, background):
    one, two = backend(), backend()
    for backend_, key in ((one, "a/1"), (two, "b/1")):
        backend_.announce(key, b"")
    one.beat("a/1", leading=True, look=True)
    two.get_state()
    before = two.beat("b/1", leading=False, look=True)
    assert two.beat("b/1", leading=False, look=True) == before + 1  # etcd still holds the leader's lease
    assert not two.vacant
    waiting = background(lambda: two.wait_for_state(None, 20.0))
    one.withdraw("a/1")
    assert waiting.result()
    assert two.vacant
    still = two.beat("b/1", leading=False, look=True)
    assert two.beat("b/1", leading=False, look=True) == still
    two.beat("b/1", leading=True, look=True)
    assert not two.vacant


@pytest.mark.parametrize("reads", [False, True], ids=["watch alone", "read first"])
def test_watching_node_notices_its_withdrawal_without_a_renewal(backend, background, reads):
    """The read may show the withdrawal before the watch does."""
    node, other = backend(), backend()
    node.announce("a/1", b"")
    other.announce("b/1", b"")
    node.get_state()
    background(lambda: node.wait_for_state(None, LONG))
    node.beat("a/1", leading=False, look=False)
    other.withdraw("a/1")
    if reads:
        node.get_state()

    def notices():
        try:
            node.beat("a/1", leading=False, look=False)
        except EntryDroppedError:
            return True

    eventually(notices, LONG / 2, "a heartbeat notices the withdrawal before a renewal is due")


class Reads(EtcdClient):
    """A client that counts the reads of single keys."""

    count = 0

    def read(self, key, end=b"", **options):
        self.count += not end
        return super().read(key, end, **options)


@pytest.mark.parametrize(
    ("watches", "leads", "grace", "expected"),
    [(True, False, 30.0, 5), (True, True, 30.0, 10), (False, False, 30.0, 10), (True, False, 0.0, 10)],
    ids=["watching", "leading", "not watching", "no grace"],
)
def test_node_reads_its_entry_with_some_renewals(backend, background, etcd, watches, leads, grace, expected):
    """With a lease of 60 s, every step of 20 s renews it, but a watching node reads its entry only after 25 s."""
    clock, client = FakeClock(), Reads([etcd.endpoint], timeout=LONG)
    node = backend(client, clock=clock, grace=grace)
    node.announce("a/1", b"")
    node.get_state()
    if watches:
        waiting = background(lambda: node.wait_for_state(None, LONG))
        backend().set_state(b"shows that the watch is open")
        assert waiting.result()
    node.beat("a/1", leading=leads, look=False)
    before = client.count
    for _ in range(10):
        clock.advance(20.0)
        node.beat("a/1", leading=leads, look=False)
    assert client.count - before == expected


def test_older_of_two_leaders_notices_the_other(backend):
    one, two = backend(), backend()
    one.announce("a/1", b"")
    two.announce("b/1", b"")
    pulse = one.beat("a/1", leading=True, look=True)
    two.beat("b/1", leading=True, look=True)
    one.get_state()
    seen = one.beat("a/1", leading=True, look=True)
    assert seen > pulse + 1  # the other leader counts as well
    assert one.beat("a/1", leading=True, look=True) == seen + 1  # it keeps leading


def test_node_announces_again_after_its_lease_ended(backend, client, prefix):
    one = backend()
    one.announce("a/1", b"entry")
    lease = client.read(Keys(prefix.decode(), "job").node("a/1")).first.lease
    client.revoke(lease)
    assert one.roster() == ()
    one.announce("a/1", b"entry")
    assert [item.key for item in one.roster()] == ["a/1"]


@pytest.mark.parametrize("foreign", [b"foreign", b"", b"\x80" * 100])
def test_foreign_state_is_reported_and_can_be_replaced(backend, client, prefix, foreign):
    key, one = Keys(prefix.decode(), "job").state, backend()
    client.transact(Transaction([], [Put(key, foreign)]))
    with pytest.raises(ForeignStateError, match=r"written by elastic-etcd .*another prefix") as caught:
        one.get_state()
    with pytest.raises(ForeignStateError):
        one.set_state(b"mine")
    assert one.set_state(b"mine", caught.value.token)[2]
    assert backend().get_state()[0] == b"mine"


def test_foreign_records_are_ignored_and_logged_once(backend, client, prefix, capfd):
    one, keys = backend(), Keys(prefix.decode(), "job")
    one.announce("a/1", b"entry")
    bad = [b"not%2", b"a%2f1", b"x" * 5000, b"\xff\xfe", b"%1B%5B2Jterminal", b"a/1", b"caf\xc3\xa9", b""]
    for name in bad:
        client.transact(Transaction([], [Put(keys.nodes + name, b"junk")]))
    client.transact(Transaction([], [Put(keys.node("large"), b"x" * 200_000)]))
    client.transact(Transaction([], [Put(keys.round + b"more", b"junk")]))
    assert [item.key for item in one.roster()] == ["a/1"]
    one.get_state()
    watching, others = backend(), backend()
    assert watching.roster() and others.roster()
    client.transact(Transaction([], [Put(keys.nodes + b"%zz", b"junk" * 100_000)]))
    assert watching.wait_for_roster(LONG)
    for _ in range(3):
        assert [item.key for item in watching.roster()] == ["a/1"]
    logged = [line for line in capfd.readouterr().err.splitlines() if "record ignored" in line]
    assert sum(str(keys.nodes, "ascii") + "not%2" in line for line in logged) == 3  # once by each
    assert sum("%zz" in line for line in logged) == 1
    assert sum("found 200000" in line for line in logged) == 3
    assert sum("not one of the job's own keys" in line for line in logged) == 1
    assert all(line.isprintable() and len(line) < 1000 for line in logged)


def test_roster_is_capped_at_the_maximum_of_nodes(backend, client, prefix, capfd):
    one, keys = backend(), Keys(prefix.decode(), "job")
    for first in range(0, 16_640, 128):
        names = [keys.node(f"n{number}") for number in range(first, first + 128)]
        client.transact(Transaction([], [Put(name, b"") for name in names]))
    assert {item.key for item in one.roster()} == {f"n{number}" for number in range(16_384)}  # the oldest
    assert one.wait_for_roster(0.1) is False
    client.transact(Transaction([], [Put(keys.node("late"), b"")]))
    assert one.wait_for_roster(LONG)
    assert len(one.roster()) == 16_384
    assert "expected at most 16384 keys" in capfd.readouterr().err


def test_full_roster_accepts_replacement_keys(client, prefix, capfd):
    keys = Keys(prefix.decode(), "job")
    cache = NodeCache(client, keys, SystemClock(), most=2)
    for names in (["a", "b"], ["c", "d"]):
        client.transact(Transaction([], [Delete(keys.nodes, end_of(keys.nodes))]))
        client.transact(Transaction([], [Put(keys.node(name), b"") for name in names]))
        assert {pair.key for pair in cache.entries(0)} == {keys.node(name) for name in names}
    assert "record ignored" not in capfd.readouterr().err
    cache.close()


def test_too_large_answer_is_reported(backend, client, prefix):
    keys = Keys(prefix.decode(), "job")
    for number in range(45):
        client.transact(Transaction([], [Put(keys.node(f"n{number}"), b"x" * 1_560_000)]))
    with pytest.raises(
        RendezvousConnectionError, match=r"too much is stored under this job's keys for a response of 64 MiB"
    ):
        backend().roster()


def test_too_large_state_is_refused(backend):
    node = backend()
    with pytest.raises(RendezvousError, match=r"1\.5 MiB"):
        node.set_state(bytes(2 * 1024 * 1024))


@pytest.mark.parametrize("more", [0, 50], ids=["behind", "ahead"])
def test_entry_from_a_restored_backup_is_rewritten(backend, servers, connect, more):
    """The node's lease and the state are in the backup, so they do not reveal it. `ahead`: nor does the revision,
    because other clients have written since."""
    server = servers.single()
    node, others = backend(EtcdClient([server.endpoint], timeout=LONG)), connect(server.endpoint)
    _, token, _ = node.set_state(b"state")
    node.announce("a/1", b"before")
    server.save()
    node.announce("a/1", b"after")
    node.get_state()
    assert not node.wait_for_state(token, 0.5)  # it follows the state from now on
    server.stop()
    server.restore()
    server.start()
    for number in range(more):
        others.transact(Transaction((), (Put(b"/other/%d" % number, b""),)))
    assert node.wait_for_state(token, LONG)
    with pytest.raises(EntryDroppedError, match="restored"):
        node.beat("a/1", leading=True, look=True)
    node.announce("a/1", b"after")
    node.beat("a/1", leading=True, look=True)
    assert [item.entry for item in node.roster()] == [b"after"]


@pytest.mark.parametrize("looks", [True, False], ids=["looks in time", "looks later"])
def test_state_written_after_a_restore_has_a_new_token(backend, servers, looks):
    """The new state has the same revision and the same lease as one before the restore."""
    server = servers.single()
    connected = lambda: backend(EtcdClient([server.endpoint], timeout=LONG))  # noqa: E731
    one, other = connected(), connected()
    _, first, _ = one.set_state(b"first")
    server.save()
    _, second, _ = one.set_state(b"second", first)
    assert one.get_state() == (b"second", second)
    assert not one.wait_for_state(second, 0.5)  # it follows the state from now on
    server.restore()
    server.start()
    if looks:
        assert one.wait_for_state(second, LONG)
    state, token = other.get_state()
    assert (state, token) == (b"first", first)
    _, third, written = other.set_state(b"third", token)
    assert written
    assert third[:2] == second[:2]
    assert third != second
    assert one.wait_for_state(second, LONG)
    assert one.get_state() == (b"third", third)
    _, fourth, written = one.set_state(b"fourth", third)
    assert written
    assert fourth.lease != third.lease or not looks, "a node that knows of the loss gives the state another lease"
