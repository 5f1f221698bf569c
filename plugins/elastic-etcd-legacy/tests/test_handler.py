"""The handler with a real etcd: nodes are threads, each with its own client."""

from __future__ import annotations

import threading
from importlib.util import find_spec

import pytest
from elastic_etcd.client.values import Put, Transaction, end_of
from elastic_testing import FakeClock
from nodes import job_at

from elastic_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
)


@pytest.fixture
def job(etcd, run_id):
    """Makes jobs of least and most nodes."""
    made = []

    def make(least, most, **settings):
        made.append(job_at([etcd.endpoint], run_id, least, most, **settings))
        running = made[-1].__enter__()
        running.patience = 60.0  # tolerates a slow server
        return running

    yield make
    for context in made:
        context.__exit__(None, None, None)


def gather(background, nodes):
    """Form a round of these nodes; returns its infos by rank."""
    return agreed([background(node.next_rendezvous) for node in nodes])


def agreed(joining):
    """The infos of the round that these joins agree on, by rank."""
    infos = sorted((call.result() for call in joining), key=lambda info: info.rank)
    assert [info.rank for info in infos] == list(range(len(joining)))
    assert {info.world_size for info in infos} == {len(joining)}
    assert len({info.bootstrap_store_info for info in infos}) == 1
    return infos


def finish_last_call(job, eventually, joining):
    """Advance the job's clock past the last call until all joins return; returns the round's infos."""

    def back():
        job.clock.advance(job.settings.last_call)
        return not any(call.running for call in joining)

    eventually(back)
    return agreed(joining)


def document_of(job):
    """The document's bytes; empty if it does not exist."""
    found = keys_of(job).get(job.settings.keys.document)
    return found.value if found else b""


def keys_of(job):
    client = job.client()
    try:
        root = job.settings.keys.root.encode()
        return {pair.key: pair for pair in client.read(root, end_of(root)).values}
    finally:
        client.close()


def test_single_node_forms_a_round(job, background):
    node = job(1, 1).node()
    (info,) = gather(background, [node])
    assert info.bootstrap_store_info.master_addr == "127.0.0.1"
    assert (node.get_backend(), node.use_agent_store, node.polled) == (
        "etcd-legacy",
        find_spec("torch") is not None,
        True,
    )
    assert node.num_nodes_waiting() == 0
    assert not node.is_closed()


@pytest.mark.parametrize("nodes", [2, 24])
def test_nodes_agree_on_ranks(job, background, nodes):
    running = job(nodes, nodes)
    infos = gather(background, [running.node() for _ in range(nodes)])
    infos[0].store.set("key", "value")
    assert all(info.store.get("key") == b"value" for info in infos)


@pytest.fixture
def job_with_fake_clock(job):
    """A job whose last call lasts until a test calls `finish_last_call`. Leases are not renewed in the meantime."""

    def make(least, most):
        running = job(least, most, last_call=0.05, timeout=600.0, keep_alive=120.0)
        running.clock = FakeClock()
        return running

    return make


def test_last_call_admits_more_nodes(job_with_fake_clock, background, eventually):
    running = job_with_fake_clock(1, 3)
    joining = [background(running.node().next_rendezvous) for _ in range(2)]
    eventually(lambda: b"node0/" in document_of(running) and b"node1/" in document_of(running))
    assert all(call.running for call in joining)
    finish_last_call(running, eventually, joining)


def test_full_round_forms_without_a_last_call(job, background):
    running = job(1, 2, last_call=120.0)
    gather(background, [running.node() for _ in range(2)])


def test_rejoining_member_starts_a_new_round(job, background, eventually):
    running = job(2, 2)
    nodes = [running.node() for _ in range(2)]
    first = gather(background, nodes)
    back = background(nodes[0].next_rendezvous)
    eventually(lambda: nodes[1].num_nodes_waiting() == 1)
    second = nodes[1].next_rendezvous()
    assert {back.result().rank, second.rank} == {0, 1}
    assert first[0].bootstrap_store_info != second.bootstrap_store_info
    assert [node.num_nodes_waiting() for node in nodes] == [0, 0]


def test_late_node_waits_until_members_rejoin(job_with_fake_clock, background, eventually):
    running = job_with_fake_clock(1, 2)
    member, late = running.node(), running.node()
    finish_last_call(running, eventually, [background(member.next_rendezvous)])
    joining = background(late.next_rendezvous)
    eventually(lambda: member.num_nodes_waiting() == 1)
    assert joining.running
    again = background(member.next_rendezvous)
    assert {again.result().rank, joining.result().rank} == {0, 1}


def test_spare_causes_no_restart_and_takes_a_free_place(job, background, eventually):
    running = job(1, 1)
    member, spare = running.node(), running.node()
    gather(background, [member])
    joining = background(spare.next_rendezvous)
    eventually(lambda: b'waiting":["node1' in document_of(running))
    assert member.num_nodes_waiting() == 0
    assert member.shutdown()
    assert joining.result().rank == 0


def test_leaving_node_is_noticed_immediately(job_with_fake_clock, background, eventually):
    running = job_with_fake_clock(1, 2)
    nodes = [running.node() for _ in range(2)]
    gather(background, nodes)
    assert nodes[0].shutdown()
    eventually(lambda: nodes[1].num_nodes_waiting() == 1)  # long before its lease ends
    finish_last_call(running, eventually, [background(nodes[1].next_rendezvous)])
    assert not nodes[1].is_closed()


def test_dead_node_is_noticed_when_its_lease_ends(job_with_fake_clock, background, eventually):
    running = job_with_fake_clock(1, 2)
    nodes = [running.node() for _ in range(2)]
    gather(background, nodes)
    client = running.client()
    keys, lost = running.settings.keys, None
    try:  # like the loss of its machine
        pairs = keys_of(running)
        lost = next(pair for key, pair in pairs.items() if key.endswith(b"rank_1"))
        client.revoke(lost.lease)
    finally:
        client.close()
    eventually(lambda: all(node.num_nodes_waiting() == 1 for node in nodes))
    assert keys.document in keys_of(running)  # no node has joined again yet
    gather(background, nodes)


def test_round_reforms_without_an_unconfirmed_participant(job, background, eventually):
    """It is listed in the document but never confirms, so the other nodes start again after the confirm timeout."""
    running = job(2, 2, confirm=2.0)
    vanishing = job(2, 2, timeout=1.5)
    vanishing.clock = FakeClock()
    joining = background(vanishing.node().next_rendezvous)
    eventually(lambda: b'participants":["node0' in document_of(running))
    vanishing.clock.advance(1.5)
    with pytest.raises(RendezvousTimeoutError, match="the rendezvous is joinable, with 1 node"):
        joining.result()
    gather(background, [running.node() for _ in range(2)])


def test_close_ends_waits_and_later_joins(job, background, eventually):
    running = job(2, 2)
    nodes = [running.node() for _ in range(2)]
    waiting = background(nodes[0].next_rendezvous)
    eventually(lambda: b'participants":["node0' in document_of(running))
    nodes[1].set_closed()
    with pytest.raises(RendezvousClosedError, match="was closed"):
        waiting.result()
    with pytest.raises(RendezvousClosedError):
        nodes[1].next_rendezvous()
    nodes[0].set_closed()
    assert nodes[0].is_closed()
    assert nodes[0].num_nodes_waiting() == 0


def test_job_can_be_closed_before_it_starts(job):
    node = job(1, 1).node()
    assert not node.is_closed()
    node.set_closed()
    assert node.is_closed()


def test_timeout_during_the_last_call_is_explained(job):
    node = job(1, 2, timeout=1.5, last_call=30.0).node()
    with pytest.raises(RendezvousTimeoutError, match="raise the timeout above last_call_timeout, which is 30 s"):
        node.next_rendezvous()


def test_join_times_out_and_leaves_no_keys(job):
    running = job(2, 2, timeout=1.5)
    with pytest.raises(RendezvousTimeoutError, match=r"at least 2 nodes .* within 1\.5 s"):
        running.node().next_rendezvous()
    assert keys_of(running) == {}


def test_shutdown_ends_a_wait(job, background, eventually):
    running = job(2, 2)
    node = running.node()
    joining = background(node.next_rendezvous)
    eventually(lambda: keys_of(running))
    assert node.shutdown()
    with pytest.raises(RendezvousError, match="shut down"):
        joining.result()
    assert node.shutdown()
    assert keys_of(running) == {}


@pytest.mark.parametrize("foreign", [b"\x80foreign", b"[" * 100_000, b'{"format":1}', b"9" * 5000])
def test_foreign_document_is_replaced_and_logged_once(job, foreign, capfd):
    running = job(1, 1, last_call=0.0)
    key = running.settings.keys.document
    client = running.client()
    client.transact(Transaction((), (Put(key, foreign),)))
    node = running.node()
    assert node.next_rendezvous().world_size == 1
    assert capfd.readouterr().err.count("record ignored") == 1
    found = client.read(key).first
    assert found.create_revision > 1
    assert found.version > 1  # writes since the key was recreated: the foreign document was removed first
    client.close()


def test_corrupt_document_or_keep_alive_starts_a_new_round(job, background, eventually):
    running = job(2, 2)
    nodes = [running.node(), running.node()]
    first = gather(background, nodes)
    client, keys = running.client(), running.settings.keys
    before = client.read(keys.document).first.create_revision
    client.transact(Transaction((), (Put(keys.document, b"foreign"),)))
    eventually(lambda: all(node.num_nodes_waiting() for node in nodes))
    second = gather(background, nodes)
    version = client.read(keys.document).first.create_revision
    assert version > before
    assert len(first) == len(second) == 2
    client.transact(Transaction((), (Put(keys.alive(version, 1), b'["a\\u001b[2J", 1]'),)))
    eventually(lambda: all(node.num_nodes_waiting() for node in nodes))
    gather(background, nodes)
    client.close()


def test_joining_and_leaving_leaks_nothing(job, etcd, eventually):
    running = job(1, 1, last_call=0.0, setup=5.0, confirm=5.0, keep_alive=5.0)
    leases = len(etcd.call("/v3/lease/leases").get("leases", ()))
    threads = threading.active_count()
    for _ in range(30):
        node = running.node()
        assert node.next_rendezvous().world_size == 1
        assert node.shutdown()
    assert keys_of(running) == {}
    eventually(lambda: threading.active_count() <= threads + 2)  # some threads may still be ending
    eventually(lambda: len(etcd.call("/v3/lease/leases").get("leases", ())) <= leases + 1)  # others may end


def test_silent_server_raises_connection_error(listener, run_id):
    with job_at([f"127.0.0.1:{listener}"], run_id, 1, 1, timeout=1.0) as running:
        running.patience = 1.0
        node = running.node()
        with pytest.raises(RendezvousConnectionError, match=str(listener)):
            node.next_rendezvous()
        with pytest.raises(RendezvousConnectionError):
            node.num_nodes_waiting()
        with pytest.raises(RendezvousConnectionError):
            node.is_closed()
