"""The handler with a real etcd. Nodes are threads, each with its own client."""

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
    """Creates jobs of `least` to `most` nodes."""
    made = []

    def make(least, most, **settings):
        made.append(job_at([etcd.endpoint], run_id, least, most, **settings))
        running = made[-1].__enter__()
        running.patience = 60.0  # the server is alive, however slow
        return running

    yield make
    for context in made:
        context.__exit__(None, None, None)


def form_round(background, nodes):
    """Let all nodes join; return their rounds in rank order."""
    return results_of([background(node.next_rendezvous) for node in nodes])


def results_of(joining):
    """Return the results in rank order, after checking that all are the same round."""
    infos = sorted((call.result() for call in joining), key=lambda info: info.rank)
    assert [info.rank for info in infos] == list(range(len(joining)))
    assert {info.world_size for info in infos} == {len(joining)}
    assert len({info.bootstrap_store_info for info in infos}) == 1
    return infos


def end_last_call(job, eventually, joining):
    """Advance the job's fake clock past the last call until the round forms; return the round."""

    def all_joined():
        job.clock.advance(job.settings.last_call)
        return not any(call.running for call in joining)

    eventually(all_joined)
    return results_of(joining)


def document_of(job):
    """Return the stored document; empty if there is none."""
    found = keys_of(job).get(job.settings.keys.document)
    return found.value if found else b""


def keys_of(job):
    client = job.client()
    try:
        root = job.settings.keys.root.encode()
        return {pair.key: pair for pair in client.read(root, end_of(root)).values}
    finally:
        client.close()


def test_one_node(job, background):
    node = job(1, 1).node()
    (info,) = form_round(background, [node])
    assert info.bootstrap_store_info.master_addr == "127.0.0.1"
    assert (node.get_backend(), node.use_agent_store, node.polled) == (
        "etcd-legacy",
        find_spec("torch") is not None,
        True,
    )
    assert node.num_nodes_waiting() == 0
    assert not node.is_closed()


@pytest.mark.parametrize("nodes", [2, 8, 24])
def test_nodes_agree_on_ranks(job, background, nodes):
    running = job(nodes, nodes)
    infos = form_round(background, [running.node() for _ in range(nodes)])
    infos[0].store.set("key", "value")
    assert all(info.store.get("key") == b"value" for info in infos)


@pytest.fixture
def manual_job(job):
    """A job whose last call lasts until the test calls `end_last_call`. Leases are not renewed until then."""

    def make(least, most):
        running = job(least, most, last_call=0.05, timeout=600.0, keep_alive=120.0)
        running.clock = FakeClock()
        return running

    return make


def test_nodes_join_during_last_call(manual_job, background, eventually):
    running = manual_job(1, 3)
    joining = [background(running.node().next_rendezvous) for _ in range(2)]
    eventually(lambda: b"node0/" in document_of(running) and b"node1/" in document_of(running))
    assert all(call.running for call in joining)
    end_last_call(running, eventually, joining)


def test_full_round_skips_last_call(job, background):
    running = job(1, 2, last_call=120.0)
    form_round(background, [running.node() for _ in range(2)])


def test_failed_member_rejoins_new_round(job, background, eventually):
    running = job(2, 2)
    nodes = [running.node() for _ in range(2)]
    first = form_round(background, nodes)
    rejoined = background(nodes[0].next_rendezvous)
    eventually(lambda: nodes[1].num_nodes_waiting() == 1)
    second = nodes[1].next_rendezvous()
    assert {rejoined.result().rank, second.rank} == {0, 1}
    assert first[0].bootstrap_store_info != second.bootstrap_store_info
    assert [node.num_nodes_waiting() for node in nodes] == [0, 0]


def test_late_node_waits_until_members_rejoin(manual_job, background, eventually):
    running = manual_job(1, 2)
    member, late = running.node(), running.node()
    end_last_call(running, eventually, [background(member.next_rendezvous)])
    joining = background(late.next_rendezvous)
    eventually(lambda: member.num_nodes_waiting() == 1)
    assert joining.running
    again = background(member.next_rendezvous)
    assert {again.result().rank, joining.result().rank} == {0, 1}


def test_spare_waits_and_replaces_leaving_member(job, background, eventually):
    running = job(1, 1)
    member, spare = running.node(), running.node()
    form_round(background, [member])
    joining = background(spare.next_rendezvous)
    eventually(lambda: b'waiting":["node1' in document_of(running))
    assert member.num_nodes_waiting() == 0
    assert member.shutdown()
    assert joining.result().rank == 0


def test_leaving_member_is_noticed_immediately(manual_job, background, eventually):
    running = manual_job(1, 2)
    nodes = [running.node() for _ in range(2)]
    form_round(background, nodes)
    assert nodes[0].shutdown()
    eventually(lambda: nodes[1].num_nodes_waiting() == 1)  # long before its lease ends
    end_last_call(running, eventually, [background(nodes[1].next_rendezvous)])
    assert not nodes[1].is_closed()


def test_dead_member_is_noticed_when_its_lease_ends(manual_job, background, eventually):
    running = manual_job(1, 2)
    nodes = [running.node() for _ in range(2)]
    form_round(background, nodes)
    client = running.client()
    keys, lost = running.settings.keys, None
    try:  # as if the node's host had failed
        pairs = keys_of(running)
        lost = next(pair for key, pair in pairs.items() if key.endswith(b"rank_1"))
        client.revoke(lost.lease)
    finally:
        client.close()
    eventually(lambda: all(node.num_nodes_waiting() == 1 for node in nodes))
    assert keys.document in keys_of(running)  # no node has asked for a new round yet
    form_round(background, nodes)


def test_participant_that_never_confirms_is_dropped(job, background, eventually):
    """After the confirm timeout, the other nodes start again."""
    running = job(2, 2, confirm=2.0)
    doomed = job(2, 2, timeout=1.5)
    doomed.clock = FakeClock()
    joining = background(doomed.node().next_rendezvous)
    eventually(lambda: b'participants":["node0' in document_of(running))
    doomed.clock.advance(1.5)
    with pytest.raises(RendezvousTimeoutError, match="the rendezvous is joinable, with 1 node"):
        joining.result()
    form_round(background, [running.node() for _ in range(2)])


def test_closed_job_rejects_waiting_and_new_nodes(job, background, eventually):
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


def test_job_without_rounds_can_be_closed(job):
    node = job(1, 1).node()
    assert not node.is_closed()
    node.set_closed()
    assert node.is_closed()


def test_join_times_out_and_leaves_no_keys(job):
    running = job(2, 2, timeout=1.5)
    with pytest.raises(RendezvousTimeoutError, match=r"at least 2 nodes .* within 1\.5 s"):
        running.node().next_rendezvous()
    assert keys_of(running) == {}


def test_shutdown_interrupts_join(job, background, eventually):
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
    assert found.version > 1  # the foreign value was deleted before, which reset the key's version
    client.close()


def test_corrupt_record_ends_round_and_nodes_form_another(job, background, eventually):
    running = job(2, 2)
    nodes = [running.node(), running.node()]
    first = form_round(background, nodes)
    client, keys = running.client(), running.settings.keys
    before = client.read(keys.document).first.create_revision
    client.transact(Transaction((), (Put(keys.document, b"foreign"),)))
    eventually(lambda: all(node.num_nodes_waiting() for node in nodes))
    second = form_round(background, nodes)
    version = client.read(keys.document).first.create_revision
    assert version > before
    assert len(first) == len(second) == 2
    client.transact(Transaction((), (Put(keys.alive(version, 1), b'["a\\u001b[2J", 1]'),)))
    eventually(lambda: all(node.num_nodes_waiting() for node in nodes))
    form_round(background, nodes)
    client.close()


def test_join_and_leave_leak_no_keys_threads_or_leases(job, etcd, eventually):
    running = job(1, 1, last_call=0.0, setup=5.0, confirm=5.0, keep_alive=5.0)
    leases = len(etcd.call("/v3/lease/leases").get("leases", ()))
    threads = threading.active_count()
    for _ in range(30):
        node = running.node()
        assert node.next_rendezvous().world_size == 1
        assert node.shutdown()
    assert keys_of(running) == {}
    eventually(lambda: threading.active_count() <= threads + 2)  # some may still be exiting
    eventually(
        lambda: len(etcd.call("/v3/lease/leases").get("leases", ())) <= leases + 1
    )  # leases of other tests may expire


def test_unresponsive_etcd_raises_connection_error(listener, run_id):
    with job_at([f"127.0.0.1:{listener}"], run_id, 1, 1, timeout=1.0) as running:
        running.patience = 1.0
        node = running.node()
        with pytest.raises(RendezvousConnectionError, match=str(listener)):
            node.next_rendezvous()
        with pytest.raises(RendezvousConnectionError):
            node.num_nodes_waiting()
        with pytest.raises(RendezvousConnectionError):
            node.is_closed()
