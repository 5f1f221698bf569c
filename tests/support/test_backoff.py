"""Pauses that grow."""

from __future__ import annotations

import pytest

from elastic_core.support.retry import Backoff

PAUSES = Backoff(first=0.05, longest=1.0)


def test_pauses_grow_from_the_first_to_the_longest():
    assert [PAUSES.pause(attempts) for attempts in range(1, 8)] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert [Backoff(1.0, 100.0, factor=10.0).pause(attempts) for attempts in (1, 2, 3, 4)] == [1.0, 10.0, 100.0, 100.0]


@pytest.mark.parametrize("attempts", [0, -1])
def test_before_the_first_failure_there_is_no_pause(attempts):
    assert PAUSES.pause(attempts) == 0.0


def test_a_store_that_is_away_for_years_is_asked_at_the_same_pace():
    assert PAUSES.pause(10**9) == 1.0


def test_a_first_pause_is_no_longer_than_the_longest():
    assert Backoff(first=5.0, longest=1.0).pause(1) == 1.0
