"""Members that die, pause, recover or never existed: the client continues with members that work."""

import contextlib
import http.server
import socket
import threading
import time

import pytest
from elastic_etcd.client.errors import EtcdClosed, EtcdUnreachable, Failure
from elastic_etcd.client.values import Compare, Field, Get, Put, Transaction, absent, end_of

from elastic_core.support.sockets import PortReservation

pytestmark = pytest.mark.nightly

RECOVERY = 20.0
"""Seconds within which writes succeed again, on a machine that may stall. A client that stays with a silent member
takes a whole timeout, or a second for every write."""

TIMEOUT = 60.0


@pytest.fixture
def client_of(connect):
    return lambda *endpoints, **options: connect(",".join(endpoints), **{"timeout": TIMEOUT, **options})


@pytest.fixture
def closed_endpoint():
    """An endpoint at which nothing listens."""
    reservation = PortReservation()
    yield f"127.0.0.1:{reservation.port}"
    reservation.release()


def create(client, key):
    """Write a key until it succeeds; an attempt whose answer was lost may have written it. Returns the number of lost
    answers."""
    lost = 0
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            done = client.transact(Transaction([absent(key)], [Put(key, b"mine")], [Get(key)]))
        except EtcdUnreachable as error:
            lost += error.landed
            continue
        assert done.succeeded or lost, "a write was applied but reported as not sent"
        return lost
    raise AssertionError("no write succeeded in 60 s")


def stalled(client, key):
    """The seconds that a write takes."""
    begun = time.monotonic()
    create(client, key)
    seconds = time.monotonic() - begun
    print(f"writes stalled for {seconds:.2f} s")
    return seconds


def from_first(cluster, first):
    """The cluster's endpoints, starting with this member's."""
    return [first.endpoint, *(member.endpoint for member in cluster.members if member is not first)]


@pytest.mark.parametrize(("used", "lost", "fault"), [(0, 0, "kill"), (1, 0, "kill"), (0, 0, "stop"), (1, 1, "stop")])
def test_client_survives_a_killed_or_paused_member(cluster, client_of, prefix, used, lost, fault):
    """Member 0 is the leader."""
    members = cluster.by_role()
    client = client_of(*from_first(cluster, members[used]))
    create(client, prefix + b"before")
    getattr(members[lost], fault)()
    assert stalled(client, prefix + b"after") < RECOVERY
    begun = time.monotonic()
    for number in range(30):
        create(client, prefix + b"%d" % number)
    assert time.monotonic() - begun < RECOVERY, "the member that works is remembered"
    assert client.members.current().endpoint != members[lost].endpoint
    assert client.read(prefix, end_of(prefix)).count == 32
    if fault == "stop":
        members[lost].cont()
        create(client, prefix + b"back")


def test_death_of_an_unused_follower_loses_no_answer(cluster, client_of, prefix):
    leader, follower, _ = cluster.by_role()
    client = client_of(*from_first(cluster, leader), attempt=TIMEOUT)
    create(client, prefix + b"before")
    follower.kill()
    begun = time.monotonic()
    lost = create(client, prefix + b"after")
    seconds = time.monotonic() - begun
    assert lost == 0 or cluster.leader() is not leader  # if the leader stalls, the other members elect a new one
    assert seconds < RECOVERY


def test_rolling_restart_loses_no_writes(cluster, client_of, prefix, background):
    client = client_of(*(member.endpoint for member in cluster.members), timeout=5)

    def write():
        done = 0
        while not restarted.is_set():
            create(client, prefix + b"%06d" % done)
            done += 1
        return done

    restarted = threading.Event()
    writing = background(write)
    for member in cluster.members:
        member.restart()
    restarted.set()
    written = writing.result(60)
    assert written > 20
    assert client.read(prefix, end_of(prefix)).count == written


def test_writes_fail_unsent_without_quorum_and_then_resume(cluster, client_of, prefix):
    client = client_of(*(member.endpoint for member in cluster.members), timeout=2)
    create(client, prefix + b"before")
    for member in cluster.members[1:]:
        member.kill()
    landed = []
    for _ in range(3):
        with pytest.raises(EtcdUnreachable) as caught:
            client.transact(Transaction([], [Put(prefix + b"during", b"")]))
        landed.append(caught.value.landed)
    assert landed[1:] == [False, False], "only the first was sent to a member of which we did not know better"
    with pytest.raises(EtcdUnreachable, match="nothing listens there"):
        client.read(prefix)
    for member in cluster.members[1:]:
        member.start()
    begun = time.monotonic()
    create(client, prefix + b"after")
    print(f"writes again {time.monotonic() - begun:.2f} s after the quorum was started")


def test_client_skips_wrong_endpoints(etcd, client_of, prefix, closed_endpoint, listener):
    """Unsent requests soon go to another member, and none goes to a silent one."""
    wrong = (closed_endpoint, "no.such.host.invalid:2379", f"127.0.0.1:{listener}")
    client = client_of(*wrong, etcd.endpoint, attempt=TIMEOUT)
    begun = time.monotonic()
    assert create(client, prefix) == 0
    for _ in range(30):
        assert client.read(prefix).first
    assert time.monotonic() - begun < RECOVERY, "the member that works is remembered"


def test_error_lists_the_fault_of_every_endpoint(client_of, closed_endpoint, listener):
    client = client_of(closed_endpoint, f"127.0.0.1:{listener}", "no.such.host.invalid:2379", timeout=12)
    causes = (
        f"{closed_endpoint}: nothing listens there",
        f"127.0.0.1:{listener}: it accepts connections but does not answer",
        "no.such.host.invalid:2379: the name cannot be resolved",
    )
    for call in (lambda: client.read(b"a"), lambda: client.transact(Transaction([], [Put(b"a", b"")]))):
        begun = time.monotonic()
        with pytest.raises(EtcdUnreachable, match="within 12 s") as caught:
            call()
        assert 11.5 < time.monotonic() - begun < TIMEOUT
        assert not caught.value.landed
        assert [cause for cause in causes if cause not in str(caught.value)] == []


def test_server_that_is_not_etcd_is_reported(client_of):
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as web:
        serving = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            client = client_of(f"127.0.0.1:{web.server_address[1]}", timeout=10)
            with pytest.raises(EtcdUnreachable, match="the server there is not etcd"):
                client.read(b"a")
        finally:
            web.shutdown()
            serving.join(TIMEOUT)


def test_lost_answer_is_reported_as_possibly_applied(servers, client_of, prefix):
    server = servers.single()
    client = client_of(server.endpoint, timeout=5)
    client.read(prefix)
    server.stop()
    with pytest.raises(EtcdUnreachable, match="The write may have taken effect") as caught:
        client.transact(Transaction([absent(prefix)], [Put(prefix, b"mine")]))
    assert caught.value.landed
    server.cont()
    assert create(client, prefix + b"other") == 0


def test_reads_are_repeated_after_a_lost_answer(servers, client_of, prefix, background, eventually):
    server = servers.single()
    client = client_of(server.endpoint)
    client.transact(Transaction([], [Put(prefix, b"1")]))
    server.stop()
    only_reads = Transaction([Compare(prefix, Field.VALUE, b"1")], [Get(prefix)])
    asked = [background(lambda: client.read(prefix)), background(lambda: client.transact(only_reads).ranges[0])]
    eventually(lambda: client.members.current().fault, TIMEOUT)  # an attempt has failed
    server.cont()
    assert [one.result(TIMEOUT).first.value for one in asked] == [b"1", b"1"]


def test_retried_grant_leaves_only_one_lease(servers, client_of, background, eventually):
    server = servers.single()
    client = client_of(server.endpoint)
    member = client.members.current()
    client.read(b"a")
    server.stop()
    granting = background(lambda: client.grant(60))
    eventually(lambda: member.fault, TIMEOUT)  # an attempt has failed
    server.cont()
    lease = granting.result(TIMEOUT)
    assert 59 <= lease.ttl <= 60
    leases = server.call("/v3/lease/leases")["leases"]
    assert [int(one["ID"]) for one in leases] == [lease.id]


def test_callbacks_report_failed_members_and_close(etcd, client_of, closed_endpoint):
    client = client_of(closed_endpoint, etcd.endpoint, attempt=TIMEOUT)
    failed = []
    with client.members.followed(failed.append):
        with client.members.followed(failed.append):
            client.read(b"a")
        assert [member.endpoint for member in failed[:2]] == [closed_endpoint] * 2
        before = len(failed)  # on a machine that stalls, more members have failed
        client.close()
    assert failed[before:] == [None]


def test_members_are_probed_in_parallel(etcd, client_of, closed_endpoint):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(30)]
        members = client_of(closed_endpoint, *(f"127.0.0.1:{port}" for port in silent), etcd.endpoint).members
        begun = time.monotonic()
        members.find(TIMEOUT)
        assert time.monotonic() - begun < RECOVERY
        assert members.current().endpoint == etcd.endpoint


def test_callbacks_report_a_change_of_member(etcd, client_of, closed_endpoint):
    """Otherwise a stream would stay on the next member in line, which no call has tried yet."""
    members = client_of(closed_endpoint, closed_endpoint.replace("127.0.0.1", "127.0.0.2"), etcd.endpoint).members
    left = []
    members.failed(members.current(), Failure("UNAVAILABLE", ""))
    with members.followed(left.append):
        members.find(TIMEOUT)
        assert (left, members.current()) == ([members.all[1]], members.all[2])
        members.find(TIMEOUT)
        assert left == [members.all[1]]  # the current member answers


def test_find_ends_at_its_timeout_or_with_the_client(client_of, closed_endpoint, background):
    client = client_of(closed_endpoint)
    begun = time.monotonic()
    client.members.find(0.3)
    assert 0.25 < time.monotonic() - begun < RECOVERY
    looking = background(lambda: client.members.find(TIMEOUT))
    assert looking.running
    client.close()
    with pytest.raises(EtcdClosed):
        looking.result(RECOVERY)
