"""The order in which nodes take a store over."""

from __future__ import annotations

import pytest

from elastic_core.rendezvous.handover import turn

HEIRS = ["b", "c", "d"]


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
