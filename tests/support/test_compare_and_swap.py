"""Changing what others change as well."""

from __future__ import annotations

import pytest
from elastic_testing import Background

from elastic_core.builtin.memory_store import MemoryStore
from elastic_core.support.retry import TooManyRefusals, swapped


def test_a_write_that_was_refused_is_decided_anew():
    refused = [None, None, "written", "not asked for"]
    assert swapped(lambda: refused.pop(0), attempts=3) == "written"
    assert refused == ["not asked for"]


@pytest.mark.parametrize("done", [0, "", False, ()])
def test_only_none_is_a_refusal(done):
    assert swapped(lambda: done, attempts=1) == done


def test_who_is_always_second_gives_up():
    tries = []
    with pytest.raises(TooManyRefusals, match="to write within 4 attempts, found that others always did so first"):
        swapped(lambda: tries.append(1), attempts=4)
    assert len(tries) == 4


def test_what_goes_wrong_is_not_tried_again():
    tries = []
    with pytest.raises(ZeroDivisionError):
        swapped(lambda: tries.append(1) or 1 // 0, attempts=4)
    assert len(tries) == 1


def test_of_many_that_write_at_once_everybody_does_once():
    store = MemoryStore()
    store.set("count", "0")

    def add_one():
        before = store.get("count")
        desired = b"%d" % (int(before) + 1)
        return store.compare_set("count", before, desired) == desired or None

    for call in [Background(lambda: [swapped(add_one, 1000) for _ in range(50)]) for _ in range(4)]:
        assert call.result() == [True] * 50
