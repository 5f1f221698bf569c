"""The order in which nodes take a store over, and the pointers that lead to it."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from elastic_core.builtin.memory_store import MemoryStore
from elastic_core.rendezvous.handover import Pointer, turn
from elastic_core.rendezvous.seal import HmacSeal
from elastic_core.rendezvous.store_connection import StoreConnection

HEIRS = ["b", "c", "d"]
LONG = 60.0


@pytest.mark.parametrize(
    ("own", "listed", "expected"),
    [
        (["b"], True, 0),
        (["c"], True, 1),
        (["d", "x"], True, 2),
        (["b"], False, 3),
        (["d"], False, 5),
        (["x"], True, None),
        ([], False, None),
    ],
)
def test_in_the_order_of_the_heirs_those_at_the_endpoint_first(own, listed, expected):
    assert turn(HEIRS, own, listed) == expected


class Connection(StoreConnection):
    """To a store in memory."""

    def __init__(self):
        super().__init__(MemoryStore(timedelta(seconds=LONG)), "here")
        self.released = threading.Event()

    def release(self):
        self.released.set()


class Endpoint:
    """A store begins there when somebody looks, and stands once it may."""

    def __init__(self):
        self.connection = Connection()
        self.looks, self.may = threading.Event(), threading.Event()

    def at_the_endpoint(self):
        self.looks.set()
        assert self.may.wait(LONG)
        yield self.connection


@pytest.mark.parametrize("closed", [True, False])
def test_a_host_that_goes_points_at_no_store_any_more(closed):
    """It may be that of its heir."""
    endpoint = Endpoint()
    pointer = Pointer(endpoint, "job", HmacSeal("job"), "there:1")
    assert endpoint.looks.wait(LONG)
    if closed:
        pointer.close()
    endpoint.may.set()
    assert endpoint.connection.released.wait(LONG)
    assert (endpoint.connection.store.num_keys() == 0) == closed
    pointer.close()
