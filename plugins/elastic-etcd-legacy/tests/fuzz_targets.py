"""Fuzz targets of elastic-etcd-legacy. See `tests/fuzz/targets.py`."""

from __future__ import annotations

from elastic_etcd.client.values import KeyValue
from elastic_etcd_legacy.decide import decide, nodes_waiting
from elastic_etcd_legacy.document import from_bytes, keep_alive_in, to_bytes, view_of
from elastic_etcd_legacy.settings import Keys
from elastic_etcd_legacy.steps import Bounds, close, give_up
from fuzz.targets import DEEP, target

from elastic_core.errors import RendezvousStateError

LEGACY = Keys("/p", "job")


@target(
    (RendezvousStateError,),
    b'{"format":1,"status":"joinable","creator":"","participants":["a"],"confirmed":[],"waiting":[]}',
    b'{"format":1,"status":"final","creator":"","participants":["a","b"],"confirmed":["a","b"],"waiting":["c"]}'
    b'\n["host", 1]',
    DEEP,
)
def legacy_document(data):
    """The older protocol's data in etcd: its document, and keep-alives, one per line."""
    first, *rest = data.split(b"\n")
    pairs = {LEGACY.document: KeyValue(LEGACY.document, first, 5, 7, 1, 9)}
    for rank, value in enumerate(rest):
        pairs[LEGACY.alive(5, rank)] = KeyValue(LEGACY.alive(5, rank), value, 6, 6, 1, 8)
    view = view_of(LEGACY, pairs)
    for now in (0.0, 100.0):
        decide(view, "a", Bounds(2, 3), 50.0, now)
    assert nodes_waiting(view, 5, Bounds(2, 3)) >= 0
    give_up(view.document, "a")
    close(view.document)
    for value in rest:
        keep_alive_in(value)
    assert from_bytes(to_bytes(from_bytes(first))) == from_bytes(first)
