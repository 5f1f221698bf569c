"""The store that a round's members share is a complete torch store, and costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest
from cluster import LONG
from elastic_etcd.backend.keys import Keys
from elastic_testing import Background, StoreContract, rendezvous_parameters

from elastic_core.rendezvous import get_rendezvous_handler


@pytest.fixture
def keys(prefix):
    return Keys(prefix.decode(), "job")


@pytest.fixture
def stored(client, keys):
    """Returns the keys of all round stores in etcd, with their leases."""

    def read():
        pairs = client.read(keys.store.encode(), keys.store.encode() + b"\xff").values
        return {pair.key.decode().removeprefix(keys.store): pair.lease for pair in pairs}

    return read


@pytest.fixture
def handlers(etcd, prefix):
    """The two nodes of a job; they do not need torch."""
    options = {"prefix": prefix.decode(), "read_timeout": LONG, "lease_ttl": 60.0}
    made = [get_rendezvous_handler(rendezvous_parameters("etcd", etcd.endpoint, "job", 2, 2, **options)) for _ in "ab"]
    yield made
    for handler in made:
        handler.shutdown()


@pytest.fixture
def stores_of(handlers):
    """Forms the next round; returns its stores by rank."""

    def meet():
        joining = [Background(handler.next_rendezvous) for handler in handlers]
        found = [call.result() for call in joining]
        return [info.store for info in sorted(found, key=lambda info: info.rank)]

    return meet


@pytest.mark.torch
class TestRoundStore(StoreContract):
    @pytest.fixture
    def store(self, dist, stores_of):
        store, self.other = stores_of()
        for one in (store, self.other):
            assert isinstance(one, dist.Store)
            one.set_timeout(timedelta(seconds=20))
        return store

    def peer(self, store):
        return self.other


@pytest.mark.torch
def test_next_rounds_store_is_empty(dist, stores_of, stored):
    first, _ = stores_of()
    first.set("key", "of the first round")
    second, other = stores_of()
    assert not second.check(["key"])
    assert second.num_keys() == other.num_keys() == 0
    assert second.list_keys() == []
    other.set("key", "of the second round")
    assert {key.partition("-")[0] for key in stored()} == {f"{2:020}"}, "the first round's keys are deleted"


@pytest.mark.torch
def test_store_keys_share_the_lease_of_the_state(dist, stores_of, stored, client, keys):
    first, second = stores_of()
    second.add("n", 1)
    first.add("n", 1)
    assert set(stored().values()) == {client.read(keys.state).first.lease}


@pytest.mark.torch
def test_store_of_an_earlier_round_is_closed(dist, stores_of):
    first, _ = stores_of()
    stores_of()
    with pytest.raises(dist.DistStoreError, match="is closed"):
        first.set("key", "late")


@pytest.mark.torch
def test_queues_are_not_implemented(dist, stores_of):
    first, _ = stores_of()
    with pytest.raises(NotImplementedError):
        first.queue_push("queue", "one")


def test_unused_store_writes_nothing_to_etcd(stores_of, stored):
    stores_of()
    stores_of()
    assert stored() == {}


AGENT = """
import sys
from elastic_core.rendezvous import get_rendezvous_handler
from elastic_testing import rendezvous_parameters

endpoint, prefix, before = sys.argv[1:]
exec(before)
handler = get_rendezvous_handler(rendezvous_parameters("etcd", endpoint, "job", prefix=prefix))
store = handler.next_rendezvous().store
store.multi_set(["key"], ["value"])
print(store.multi_get(["key"]), store.timeout)
print(bool(sys.modules.get("torch")))
handler.shutdown()
"""


@pytest.fixture
def agent(etcd, prefix):
    """Runs a one-node round in a separate process; returns its output."""

    def run(before):
        command = [sys.executable, "-c", AGENT, etcd.endpoint, prefix.decode(), before]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LONG).stdout.splitlines()

    return run


@pytest.mark.parametrize("before", ["", "sys.modules['torch'] = None"])
def test_agent_without_torch_uses_the_store(agent, before):
    assert agent(before) == ["[b'value'] 0:05:00", "False"]


@pytest.mark.torch
def test_agent_with_torch_gets_a_torch_store(agent):
    assert agent("import torch.distributed") == ["[b'value'] 0:05:00", "True"]
