"""One lease and its keeper, with a real server, and on a fake clock where time matters."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from subprocess import PIPE

import pytest
from elastic_etcd.client.errors import EtcdLeaseGone, EtcdUnreachable
from elastic_etcd.client.lease_keeper import ATTEMPTS, LeaseKeeper
from elastic_etcd.client.values import Lease, Put, Transaction
from elastic_testing import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from two_clients import TwoClients

TTL = 60.0
GRANTED = "etcd_debugging_lease_granted_total"
RENEWED = "etcd_debugging_lease_renewed_total"
LIMIT_S = 60
STOPPED_TTL = 8.0  # seconds: must outlast the time from the grant to the pause, and from the end to the last check


class SlowClock:
    """A clock that advances by `step` seconds at each reading."""

    def __init__(self, step):
        self.step = step
        self._clock = FakeClock()

    def now(self):
        return self._clock.advance(self.step)

    def timestamp(self):
        return self._clock.timestamp()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def losses():
    """One `None` for each lost lease."""
    return []


@pytest.fixture
def keeper(client, clock, losses):
    made = LeaseKeeper(client, TTL, lambda: losses.append(None), clock)
    yield made
    made.release()


@pytest.fixture
def counted(etcd):
    """Returns how many leases were granted and renewed since the test began."""
    before = [etcd.metric(GRANTED), etcd.metric(RENEWED)]
    return lambda: [etcd.metric(name) - was for name, was in zip((GRANTED, RENEWED), before, strict=True)]


def lives(client, lease):
    """Whether the server knows the lease (this renews it)."""
    try:
        return client.renew(lease) > 0
    except EtcdLeaseGone:
        return False


def put(client, key, lease):
    client.transact(Transaction((), (Put(key, b"v", lease),)))


# What a lease needs


class Grants:
    """A client whose leases never expire, and which counts renewals."""

    where = "here"

    def __init__(self):
        self.renewed = 0

    def grant(self, ttl):
        return Lease(1, ttl)

    def renew(self, lease):
        self.renewed += 1
        return TTL


def aged(ttl, since, age):
    """A keeper whose lease was granted `age` seconds ago, with its client and clock."""
    client, clock = Grants(), FakeClock()
    clock.advance(since)
    keeper = LeaseKeeper(client, ttl, clock=clock)
    keeper.ensure()
    clock.advance(age)
    return keeper, client, clock


def needed(ttl, since, age):
    """The need of a lease of this age: 0 for none, 1 for renewal, 2 for renewal before its next use."""
    keeper, client, _ = aged(ttl, since, age)
    keeper.ensure()
    doubtful = client.renewed
    keeper, client, _ = aged(ttl, since, age)
    keeper.renew_if_due()
    return doubtful + client.renewed


NOTHING, RENEW, CONFIRM = range(3)


@pytest.mark.parametrize(("need", "ages"), [(NOTHING, (0, 1, 2.9)), (RENEW, (3, 5, 9.9)), (CONFIRM, (10, 11, 1e6))])
def test_lease_age_decides_renewal_and_confirmation(need, ages):
    assert {needed(10.0, 100.0, age) for age in ages} == {need}


TIMES = st.floats(0, 1e6)


@given(st.floats(2, 1e4), TIMES, TIMES, TIMES)
def test_older_lease_never_needs_less(ttl, since, one, other):
    earlier, later = sorted((one, other))
    assert needed(ttl, since, earlier) <= needed(ttl, since, later)


@given(st.floats(2, 1e4), TIMES, TIMES)
def test_renewal_at_its_due_time_leaves_time_to_spare(ttl, since, age):
    wait = aged(ttl, since, age)[0].due_in()
    assert wait >= 0
    if wait:
        assert needed(ttl, since, age + wait + 1e-6) == RENEW
    else:
        assert needed(ttl, since, age + 1e-6) != NOTHING


# The keeper


def test_lease_is_renewed_only_when_due(keeper, clock, counted):
    lease = keeper.ensure()
    assert keeper.renew_if_due()
    assert counted() == [1, 0]
    clock.advance(keeper.due_in())
    assert keeper.renew_if_due()
    assert keeper.renew_if_due()
    assert keeper.lease == lease
    assert counted() == [1, 1]


def test_renewal_follows_the_ttl_that_the_server_granted(client, clock, counted):
    keeper = LeaseKeeper(client, 0.5, clock=clock)
    keeper.ensure()
    assert keeper.due_in() >= 0.3  # the server grants a second at least, not half a second
    keeper.release()


def test_lease_age_starts_before_the_request_is_sent(client, losses):
    keeper = LeaseKeeper(client, TTL, lambda: losses.append(None), SlowClock(0.25 * TTL))
    lease = keeper.ensure()  # an answer takes a quarter of the TTL
    assert keeper.renew_if_due()
    assert keeper.lease == lease
    keeper.release()


def test_overdue_lease_is_kept_if_the_server_renews_it(keeper, clock, losses, counted):
    lease = keeper.ensure()
    clock.advance(10 * TTL)
    assert keeper.ensure() == lease
    assert counted() == [1, 1]
    assert losses == []


def test_lost_lease_is_reported_once_and_replaced_on_demand(keeper, client, clock, losses):
    lease = keeper.ensure()
    client.revoke(lease)
    clock.advance(TTL + 5)
    assert not keeper.renew_if_due()
    assert not keeper.renew_if_due()
    assert len(losses) == 1
    other = keeper.ensure()
    assert other != lease
    assert lives(client, other)
    assert len(losses) == 1


def test_loss_found_by_another_call_is_reported_once(keeper, client, losses, prefix):
    lease = keeper.ensure()
    client.revoke(lease)
    with pytest.raises(EtcdLeaseGone):
        put(client, prefix, lease)
    keeper.gone(lease)
    keeper.gone(lease)
    assert len(losses) == 1
    put(client, prefix, keeper.ensure())
    keeper.gone(lease)  # an old lease by now
    assert keeper.lease not in (None, lease)
    assert len(losses) == 1


def test_loss_callback_may_request_a_new_lease(client, clock):
    again = []
    keeper = LeaseKeeper(client, TTL, lambda: again.append(keeper.ensure()), clock)
    lease = keeper.ensure()
    client.revoke(lease)
    clock.advance(TTL)
    assert [keeper.ensure()] == again
    assert again != [lease]
    keeper.release()


def test_release_deletes_the_keys_and_is_no_loss(keeper, client, losses, prefix):
    lease = keeper.ensure()
    put(client, prefix, lease)
    keeper.release()
    keeper.release()
    assert client.read(prefix).first is None
    assert not lives(client, lease)
    assert keeper.lease is None
    assert losses == []


def test_concurrent_threads_share_one_lease(keeper, background, counted):
    together = threading.Barrier(4)

    def want():
        together.wait(LIMIT_S)
        return keeper.ensure()

    assert {one.result() for one in [background(want) for _ in range(4)]} == {keeper.lease}
    assert counted() == [1, 0]


def test_late_answers_raise_unreachable_and_are_no_loss(client, losses, counted):
    clock = SlowClock(2 * TTL)
    keeper = LeaseKeeper(client, TTL, lambda: losses.append(None), clock)
    with pytest.raises(EtcdUnreachable, match="3 responses in a row"):
        keeper.ensure()
    with pytest.raises(EtcdUnreachable, match="longer than the 60 s that a lease lives"):
        keeper.renew_if_due()
    assert counted() == [1, 2 * ATTEMPTS - 1]
    clock.step = 0.0
    assert keeper.ensure() == keeper.lease
    assert losses == []
    keeper.release()


# Faults


def test_lease_survives_a_server_outage(servers, connect, clock, losses):
    server = servers.single()
    client = TwoClients(connect(server.endpoint), connect(server.endpoint, timeout=1.0))
    keeper = LeaseKeeper(client, TTL, lambda: losses.append(None), clock)
    lease = keeper.ensure()
    server.kill()
    client.away = True
    clock.advance(10 * TTL)
    for ask in (keeper.renew_if_due, keeper.ensure):
        with pytest.raises(EtcdUnreachable):
            ask()
    assert keeper.lease == lease
    server.start()
    server.wait_healthy()
    client.away = False
    assert keeper.renew_if_due()
    assert keeper.ensure() == lease
    assert losses == []


def test_process_paused_beyond_its_ttl_detects_the_loss(etcd, client, prefix, eventually):
    program = f"""
import sys
from elastic_etcd.client.client import EtcdClient
from elastic_etcd.client.lease_keeper import LeaseKeeper
losses = []
client = EtcdClient([{etcd.endpoint!r}], timeout=60)
keeper = LeaseKeeper(client, {STOPPED_TTL}, lambda: losses.append(None))
print(keeper.ensure(), flush=True)
for order in sys.stdin:
    held = keeper.renew_if_due()
    print(held, keeper.lease, len(losses), keeper.ensure(), flush=True)
keeper.release()
client.close()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE, text=True) as process:
        watchdog = threading.Timer(LIMIT_S, process.kill)
        watchdog.start()
        try:
            lease = int(process.stdout.readline())
            put(client, prefix, lease)
            process.send_signal(signal.SIGSTOP)
            eventually(lambda: client.read(prefix).first is None, LIMIT_S)
            process.send_signal(signal.SIGCONT)
            process.stdin.write("look\n")
            process.stdin.flush()
            held, kept, count, other = process.stdout.readline().split()
            assert (held, kept, count) == ("False", "None", "1")
            assert int(other) != lease
            assert lives(client, int(other))
            process.stdin.close()
            assert process.wait(LIMIT_S) == 0
            assert not lives(client, int(other))
        finally:
            watchdog.cancel()
            process.kill()
