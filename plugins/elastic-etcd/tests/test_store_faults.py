"""EtcdStore when something goes wrong: lost answers, outages, contention, bad values."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from elastic_etcd.client.errors import EtcdDenied, EtcdLeaseGone, EtcdUnreachable
from elastic_etcd.client.values import Delete, Transaction, end_of
from elastic_testing import FakeClock

pytestmark = pytest.mark.torch

SOON = timedelta(milliseconds=300)
LONG = 60.0


class LossyClient:
    """A real client that loses answers on purpose. `plan` lists the fate of the next writes: "lost" (applied, but not
    answered), "late" (not answered, and applied when `deliver` is called), "never" (neither answered nor applied),
    "refused" (not applied, and the caller learns that), or None (no fault). Each but "lost" takes a second on the
    clock, if one is given."""

    def __init__(self, client, clock=None):
        self._client = client
        self._clock = clock
        self._held = []
        self.plan = []
        self.after = lambda: None  # called after a fault

    def __getattr__(self, name):
        return getattr(self._client, name)

    def transact(self, transaction):
        fate = self.plan.pop(0) if self.plan and transaction.conditions else None
        if fate is None:
            return self._client.transact(transaction)
        if self._clock is not None and fate != "lost":
            self._clock.advance(1.0)
        if fate == "refused":
            raise EtcdUnreachable("connection refused")
        if fate == "lost":
            self._client.transact(transaction)
        elif fate == "late":
            self._held.append(transaction)
        self.after()
        raise EtcdUnreachable("the answer was lost", landed=True)

    def deliver(self):
        """Send the late writes; returns whether any of them was applied."""
        carried_out = [self._is_carried_out(transaction) for transaction in self._held]
        return any(carried_out)

    def _is_carried_out(self, transaction):
        try:
            return self._client.transact(transaction).succeeded
        except EtcdLeaseGone:
            return False


class ClientWithWatchEvent:
    """A client whose `watches` event is set when a watch begins."""

    def __init__(self, client):
        self._client = client
        self.watches = threading.Event()

    def __getattr__(self, name):
        return getattr(self._client, name)

    @property
    def members(self):
        self.watches.set()
        return self._client.members


@pytest.fixture
def lossy(client):
    return LossyClient(client)


@pytest.fixture
def make(client, prefix):
    from elastic_etcd import EtcdStore

    made = []

    def store(over=client, timeout=timedelta(seconds=20), **options):
        made.append(EtcdStore(over, prefix.decode(), timeout, **options))
        return made[-1]

    yield store
    for each in made:
        each.close()


@pytest.mark.parametrize(
    "plan", [["lost"], ["late"], ["never"], ["lost", "lost"], ["late", "never"], ["never", "lost"]]
)
def test_writes_with_lost_answers_apply_once(make, lossy, plan):
    store, other = make(lossy), make()
    store.set("k", "before")
    results = {}
    for name, write in {
        "add": lambda: store.add("n", 3),
        "again": lambda: store.add("n", 4),
        "append": lambda: store.append("a", "x"),
        "more": lambda: store.append("a", "y"),
        "set": lambda: store.set("k", "v"),
        "compare_set": lambda: store.compare_set("c", "", "v"),
        "refused": lambda: store.compare_set("c", "", "w"),
        "delete": lambda: store.delete_key("k"),
        "multi_set": lambda: store.multi_set(["m1", "m2"], ["1", "2"]),
    }.items():
        lossy.plan = list(plan)
        results[name] = write()
        assert not lossy.plan
        assert not lossy.deliver(), name
    assert (results["add"], results["again"], results["compare_set"], results["refused"]) == (3, 7, b"v", b"v")
    assert results["delete"] is True
    assert other.multi_get(["n", "a", "c", "m1", "m2"]) == [b"7", b"xy", b"v", b"1", b"2"]
    assert not other.check(["k"])


def test_failed_compare_set_does_not_apply_later(make, lossy):
    """The write waits in a paused member until its conditions are met."""
    store, other = make(lossy), make()
    other.set("k", "other")
    lossy.plan = ["late"]
    assert store.compare_set("k", "expected", "desired") == b"other"
    other.set("k", "expected")
    assert not lossy.deliver()
    assert other.get("k") == b"expected"


@pytest.mark.parametrize("fate", ["lost", "late", "never", "refused"])
def test_set_applies_once_when_its_fence_gets_no_answer(make, lossy, client, prefix, fate):
    store = make(lossy)
    store.set("k", "before")
    lossy.plan = ["lost", None, fate]
    store.set("k", "after")
    assert not lossy.plan
    assert not lossy.deliver()
    found = client.read(prefix + b"k/k").first
    assert (found.value, found.version) == (b"after", 2)


def test_marker_deleted_before_its_fence_repeats_the_write(make, lossy, client, prefix):
    store = make(lossy)
    store.set("k", "before")
    client.transact(Transaction((), (Delete(prefix + b"w/", end_of(prefix + b"w/")),)))
    lossy.plan = [None, "lost"]
    store.set("k", "after")
    assert store.get("k") == b"after"


@pytest.mark.parametrize(
    "first", [lambda store: store.set("k", "old"), lambda store: store.compare_set("k", "x", "old")]
)
def test_late_write_after_close_changes_nothing(make, lossy, first):
    """The late write is the one that creates the marker; its condition is that no marker exists."""
    store, other = make(lossy), make()
    lossy.plan = ["late"]
    first(store)
    store.close()
    other.set("k", "x")
    assert not lossy.deliver()
    assert other.get("k") == b"x"


def test_late_copy_of_failed_write_changes_nothing_after_close(dist, make, client):
    """The write was applied; its retry arrives after the markers were deleted."""
    clock = FakeClock()
    lossy = LossyClient(client, clock)
    store, other = make(lossy, timeout=timedelta(seconds=1.5), clock=clock), make()
    lossy.plan = ["lost", "late", *["never"] * 100]
    with pytest.raises(dist.DistNetworkError):
        store.set("k", "old")
    assert lossy.plan == ["never"] * 99
    store.close()
    other.set("k", "new")
    assert not lossy.deliver()
    assert other.get("k") == b"new"


def test_retried_add_keeps_additions_of_other_clients(make, lossy, background):
    store, other = make(lossy), make()
    store.add("n", 1)
    lossy.plan = ["lost"]
    adding = background(lambda: store.add("n", 1))
    returned = [other.add("n", 10) for _ in range(20)]
    adding.result(LONG)
    assert store.get("n") == b"202"
    assert returned[-1] in (201, 202)


def test_unanswered_write_raises_network_error(dist, make, lossy):
    store = make(lossy, timeout=SOON)
    lossy.plan = ["never"] * 100
    with pytest.raises(dist.DistNetworkError, match="the answer was lost") as caught:
        store.set("k", "v")
    assert caught.value.__cause__.landed
    lossy.plan = []
    store.set("k", "v")
    assert store.get("k") == b"v"


def test_write_without_fence_reports_that_it_may_have_landed(dist, make, client):
    clock = FakeClock()
    lossy = LossyClient(client, clock)
    store = make(lossy, timeout=SOON, clock=clock)
    lossy.plan = ["lost", None, *["refused"] * 100]
    with pytest.raises(dist.DistNetworkError, match="connection refused") as caught:
        store.set("k", "v")
    assert caught.value.__cause__.landed


def test_deleted_markers_are_recreated(make, client, prefix):
    store = make()
    store.set("k", "1")
    store.add("n", 1)
    client.transact(Transaction((), (Delete(prefix, end_of(prefix)),)))
    assert store.num_keys() == 0
    store.set("k", "2")
    assert store.add("n", 1) == 1
    assert store.get("k") == b"2"


def test_close_keeps_the_keys(make, client, prefix):
    store = make()
    store.set("k", "1")
    store.close()
    store.close()
    assert [pair.key for pair in client.read(prefix, end_of(prefix)).values] == [prefix + b"k/k"]


def test_unanswered_write_with_expired_marker_is_not_repeated(dist, make, lossy, client, prefix):
    """The write was applied, another store has written since, and the marker expired."""
    store, other = make(lossy), make()
    store.set("k", "before")
    [marker] = client.read(prefix + b"w/", end_of(prefix + b"w/")).values
    lossy.plan = ["lost"]
    lossy.after = lambda: (other.set("k", "z"), client.revoke(marker.lease))
    with pytest.raises(dist.DistNetworkError, match="may have taken effect"):
        store.set("k", "y")
    assert client.read(prefix + b"k/k").first.value == b"z"


def test_closed_stores_leave_no_keys_and_no_leases(servers, connect, prefix):
    from elastic_etcd import EtcdStore

    server = servers.single()
    client = connect(server.endpoint)
    for number in range(20):
        store = EtcdStore(client, f"store-{number}")
        store.add("n", 1)
        store.delete_key("n")
        store.close()
    assert client.read(b"\0", b"\0").values == ()
    assert server.call("/v3/lease/leases").get("leases", []) == []


def test_marker_with_expired_lease_is_replaced(make, etcd, client, prefix):
    """Like after a minute without a write."""
    store = make()
    store.set("k", "1")
    [marker] = client.read(prefix + b"w/", end_of(prefix + b"w/")).values
    client.revoke(marker.lease)
    store.set("k", "2")
    assert store.get("k") == b"2"
    [another] = client.read(prefix + b"w/", end_of(prefix + b"w/")).values
    assert another.lease not in (0, marker.lease)


def test_close_ends_wait(dist, make, client, background):
    watched = ClientWithWatchEvent(client)
    store = make(watched)
    waiting = background(lambda: store.wait(["never"], timedelta(seconds=2 * LONG)))
    assert watched.watches.wait(LONG)
    store.close()
    with pytest.raises(dist.DistStoreError, match="was closed"):
        waiting.result(LONG)


def test_timeout_change_does_not_affect_running_wait(dist, make, client, background):
    watched = ClientWithWatchEvent(client)
    store, other = make(watched, timeout=timedelta(seconds=LONG)), make(timeout=SOON)
    waiting = background(lambda: store.multi_get(["a", "z"]))
    assert watched.watches.wait(LONG)
    store.set_timeout(timedelta(milliseconds=1))
    with pytest.raises(dist.DistStoreError, match="wait timeout after 300ms"):
        other.get("never")
    other.set("a", "1")  # the waiter checks its deadline again
    with pytest.raises(dist.DistStoreError, match="wait timeout after 300ms"):
        other.get("never")
    other.set("z", "2")
    assert waiting.result(LONG) == [b"1", b"2"]


def test_revoked_lease_deletes_all_keys_of_the_store(make, client, prefix):
    lease = client.grant(60.0)
    store = make(lease=lease.id)
    store.set("k", "1")
    store.add("n", 1)
    client.revoke(lease.id)
    assert client.read(prefix, end_of(prefix)).values == ()
    with pytest.raises(RuntimeError, match="lease"):
        store.set("k", "2")


def test_add_treats_empty_value_as_zero_and_wraps_at_64_bits(make):
    store = make()
    store.set("n", "")
    assert store.add("n", 1) == 1
    store.set("n", str(2**63 - 1))
    assert store.add("n", 1) == -(2**63)


def test_too_large_values_are_refused(make):
    store = make()
    store.set("k", "v")
    for write in (
        lambda: store.set("k", bytes(1536 * 1024)),
        lambda: store.compare_set("k", "v", bytes(1536 * 1024)),
        lambda: store.append("k", bytes(1536 * 1024)),
        lambda: store.multi_set(["a", "k"], ["1", bytes(1536 * 1024)]),
    ):
        with pytest.raises(ValueError, match="one write may contain at most"):
            write()
    assert (store.get("k"), store.num_keys()) == (b"v", 1)
    with pytest.raises(ValueError, match="as many keys as values"):
        store.multi_set(["a", "b"], ["1"])


def test_multi_set_splits_large_values(make):
    store = make()
    keys = [f"k{number}" for number in range(10)]
    values = [bytes([number]) * 400_000 for number in range(10)]
    store.multi_set(keys, values)
    assert store.multi_get(keys) == values
    store.set("k", bytes(1536 * 1024 - 8192))
    assert len(store.get("k")) == 1536 * 1024 - 8192


def test_store_held_only_by_prefix_store_works(dist, make):
    import gc

    from elastic_etcd import EtcdStore

    outer = dist.PrefixStore("x", make())
    gc.collect()
    outer.set("k", "v")
    assert outer.get("k") == b"v"
    assert outer.delete_key("k")
    assert outer.num_keys() == 0
    assert isinstance(outer.underlying_store, EtcdStore)


def test_prefixed_store_raises_torch_errors(dist, make):
    outer = dist.PrefixStore("x", make())
    outer.set_timeout(SOON)
    with pytest.raises(dist.DistStoreError, match="wait timeout after 300ms, keys: x/never"):
        outer.get("never")
    with pytest.raises(dist.DistStoreError, match="wait timeout after 100ms, keys: x/a, x/b"):
        outer.wait(["a", "b"], timedelta(milliseconds=100))


def test_operations_raise_network_error_if_nothing_listens(dist, make, connect):
    store = make(connect("127.0.0.1:1", timeout=0.5), SOON)
    for operation in (lambda: store.get("k"), lambda: store.add("n", 1), lambda: store.wait(["k"], SOON)):
        with pytest.raises(dist.DistNetworkError):
            operation()


def test_operations_without_permission_raise_store_error(dist, servers, connect):
    import cluster
    from elastic_etcd import EtcdStore
    from elastic_etcd.client.members import Login

    server = servers.single(users=(cluster.User("me", "secret", b"/mine/"),))
    client = connect(server.endpoint, login=Login("me", "secret"))
    store = EtcdStore(client, "mine/store")
    store.set("k", "v")
    assert store.get("k") == b"v"
    other = EtcdStore(client, "others")
    for operation in (lambda: other.set("k", "v"), lambda: other.wait(["k"], SOON), lambda: other.num_keys()):
        with pytest.raises(dist.DistStoreError) as caught:
            operation()
        assert isinstance(caught.value.__cause__, EtcdDenied)
    store.close()
    other.close()


def test_concurrent_adds_survive_killed_etcd_leader(make, cluster, connect, background):
    """No addition is lost or counted twice, and a running wait continues."""
    endpoints = [member.endpoint for member in cluster.members]
    clients = [connect(",".join(endpoints[number:] + endpoints[:number]), timeout=5.0) for number in range(3)]
    stores = [make(client, timedelta(seconds=LONG)) for client in clients]
    waiting = background(lambda: stores[0].wait(["end"], timedelta(seconds=10 * LONG)))
    counting = [background(lambda store=store: [store.add("n", 1) for _ in range(150)]) for store in stores]
    cluster.leader().kill()
    returned = [numbers for count in counting for numbers in count.result(LONG)]
    stores[1].set("end", "")
    waiting.result(LONG)
    assert sorted(returned) == list(range(1, 451))
