"""What of this package reads what others wrote, on input of any kind. The examples are the same each time."""

from __future__ import annotations

import json

from elastic_etcd.client.values import KeyValue
from elastic_etcd_legacy.decide import decide, nodes_waiting
from elastic_etcd_legacy.document import View, from_bytes, keep_alive_in, to_bytes, view_of
from elastic_etcd_legacy.settings import Keys
from elastic_etcd_legacy.steps import Bounds, close, give_up
from elastic_etcd_legacy.table import Status
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.clock import Instant
from elastic_core.errors import RendezvousStateError

KEYS = Keys("/p", "job")
BOUNDS = Bounds(2, 3)
many = settings(derandomize=True, max_examples=500, deadline=None)

names = st.lists(st.sampled_from(["a", "b", "c", "d", "", "\x1b", "é"]) | st.integers(), max_size=4)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "format": st.just(1) | junk,
        "status": st.sampled_from([status.value for status in Status]) | junk,
        "creator": st.sampled_from(["", "a"]) | junk,
        "participants": names | junk,
        "confirmed": names | junk,
        "waiting": names | junk,
    },
)
likely = st.fixed_dictionaries(
    {
        "format": st.just(1),
        "status": st.sampled_from([status.value for status in Status]),
        "creator": st.sampled_from(["", "a"]),
        **{field: st.permutations("abc").flatmap(lambda it: st.integers(0, 3).map(lambda n: it[:n]))
           for field in ("participants", "confirmed", "waiting")},
    }
)  # fmt: skip
raw = st.one_of(st.binary(max_size=40), junk.map(json.dumps).map(str.encode),
                (documents | likely).map(json.dumps).map(str.encode))  # fmt: skip


@many
@given(raw)
def test_documents(found):
    try:
        document = from_bytes(found)
    except RendezvousStateError:
        return
    assert from_bytes(to_bytes(document)) == document


@many
@given(raw | st.tuples(st.text(max_size=5) | junk, st.integers() | junk).map(json.dumps).map(str.encode))
def test_keep_alives(found):
    try:
        alive = keep_alive_in(found)
    except RendezvousStateError:
        return
    assert 0 <= alive.port < 2**16
    assert alive.address.isprintable()


@many
@given(raw, st.lists(st.tuples(st.integers(0, 4), raw | st.just(b'["host", 1]')), max_size=4), st.sampled_from("abcd"))
def test_whatever_stands_there_a_node_knows_what_to_do(document, alive, token):
    pairs = {KEYS.document: KeyValue(KEYS.document, document, 5, 7, 1, 9)}
    for rank, value in alive:
        pairs[KEYS.alive(5, rank)] = KeyValue(KEYS.alive(5, rank), value, 6, 6, 1, 8)
    ignored = []
    view = view_of(KEYS, pairs, lambda key, why: ignored.append((key, why)))
    assert isinstance(view, View)
    assert {key for key, _ in ignored} <= pairs.keys()
    for now in (0.0, 100.0):
        decide(view, token, BOUNDS, Instant(50.0), Instant(now))
    assert nodes_waiting(view, 5, BOUNDS) >= 0
    give_up(view.document, token)
    close(view.document)
