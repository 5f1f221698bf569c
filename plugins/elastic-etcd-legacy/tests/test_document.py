"""The document under our keys: encoding, decoding, and foreign bytes."""

from __future__ import annotations

import pytest
from elastic_etcd.client.values import KeyValue
from elastic_etcd_legacy.document import DocumentView, KeepAlive, Rendezvous, from_bytes, to_bytes, view_of
from elastic_etcd_legacy.settings import Keys
from elastic_etcd_legacy.table import Status
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.errors import RendezvousStateError

NAMES = st.lists(
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20), max_size=4, unique=True
)
NAMES = NAMES.map(tuple)
KEYS = Keys("/some/prefix/", "job")
FINAL = Rendezvous(Status.FINAL, "", ("a", "b"), ("b", "a"), ("c",))


@given(st.builds(Rendezvous, st.sampled_from(Status), st.text(max_size=20), NAMES, NAMES, NAMES))
def test_document_survives_encoding_or_is_refused(document):
    try:
        assert from_bytes(to_bytes(document)) == document
    except RendezvousStateError as error:
        assert "etcd_prefix" in str(error)


@given(NAMES.filter(len), st.data())
def test_every_reachable_document_survives_encoding(names, data):
    some = tuple(data.draw(st.permutations(names)))
    few = some[: data.draw(st.integers(0, len(names) - 1))]
    for document in (
        Rendezvous(Status.SETUP, names[0]),
        Rendezvous(Status.JOINABLE, names[0]),
        Rendezvous(Status.JOINABLE, "", names),
        Rendezvous(Status.FROZEN, "", names, few),
        Rendezvous(Status.FINAL, "", names, some, ("another/1",)),
        Rendezvous(Status.CLOSED),
    ):
        assert from_bytes(to_bytes(document)) == document


FOREIGN = [
    b"",
    b"\xff",
    b"[]",
    b"1",
    b"{}",
    b"[" * 100_000,
    b'{"status": "final", "version": "1", "participants": [0], "keep_alives": [], "num_workers_waiting": 0}',
    to_bytes(FINAL).replace(b'"format":1', b'"format":2'),
    to_bytes(FINAL).replace(b'"final"', b'"finished"'),
    to_bytes(FINAL).replace(b'["a","b"]', b'"ab"'),
    to_bytes(FINAL).replace(b'["a","b"]', b"[0,1]"),
    to_bytes(FINAL).replace(b'"creator":""', b'"creator":null'),
    to_bytes(FINAL).replace(b'"format":1', b'"format":true'),
    to_bytes(FINAL).replace(b'"format":1', b'"format":' + b"1" * 5000),
    to_bytes(FINAL).replace(b'["a","b"]', b'["a","a"]'),
    to_bytes(FINAL).replace(b'["a","b"]', b'["a","c"]'),
    to_bytes(FINAL).replace(b'["c"]', b'["a"]'),
    to_bytes(FINAL).replace(b'"final"', b'"frozen"'),
    to_bytes(FINAL).replace(b'"final"', b'"joinable"'),
    to_bytes(FINAL).replace(b'"final"', b'"setup"'),
    to_bytes(FINAL).replace(b'"final"', b'["final"]'),
    to_bytes(FINAL).replace(b'"c"', b'"\\u001b[2J"'),
    to_bytes(FINAL).replace(b'"c"', b'"' + b"c" * 513 + b'"'),
]


@pytest.mark.parametrize("raw", FOREIGN, ids=lambda raw: repr(raw[:20]))
def test_foreign_bytes_are_refused(raw):
    with pytest.raises(RendezvousStateError, match="etcd_prefix"):
        from_bytes(raw)


def pair(key, value, created=5, modified=7, lease=0):
    return KeyValue(key, value, created, modified, 1, lease)


def pairs(*found):
    return {item.key: item for item in found}


def test_view_without_a_document_is_empty():
    assert view_of(KEYS, {}) == DocumentView()


def test_view_lists_live_members():
    alive = (pair(KEYS.alive(5, rank), KeepAlive("host", rank).to_bytes()) for rank in (0, 1))
    view = view_of(KEYS, pairs(pair(KEYS.document, to_bytes(FINAL), lease=9), *alive))
    assert (view.document, view.version, view.revision, view.lease) == (FINAL, 5, 7, 9)
    assert view.alive == {0: KeepAlive("host", 0), 1: KeepAlive("host", 1)}
    assert view.lost == ()


def test_keep_alives_of_another_round_are_ignored():
    old = pair(KEYS.alive(4, 0), KeepAlive().to_bytes())
    mine = pair(KEYS.alive(5, 1), KeepAlive().to_bytes())
    assert view_of(KEYS, pairs(pair(KEYS.document, to_bytes(FINAL)), old, mine)).lost == (0,)


def test_foreign_document_is_ignored_but_its_revision_kept():
    ignored = []
    view = view_of(KEYS, pairs(pair(KEYS.document, b"foreign")), lambda *problem: ignored.append(problem))
    assert view == DocumentView(revision=7)
    assert [key for key, _ in ignored] == [KEYS.document]


def test_keys_keep_the_documented_layout():
    assert KEYS.document == b"/some/prefix/run_job/rdzv/active_version"
    assert KEYS.alive(5, 1) == b"/some/prefix/run_job/rdzv/v_5/rank_1"
    assert KEYS.store(5) == "/some/prefix/run_job/kv/v_5/"
    assert Keys("", "job").root == Keys("/", "job").root == "/run_job/"
    assert Keys("", "a/rdzv").root == "/run_a%2Frdzv/"  # not among the keys of job `a`
    assert not KEYS.store(5).encode().startswith(KEYS.followed)
