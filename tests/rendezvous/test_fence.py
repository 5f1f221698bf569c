from __future__ import annotations

from elastic_core.rendezvous.fence import Fence


def test_a_store_that_answers_fences_nobody():
    fence = Fence(5.0, 1.0)
    assert not fence.passed(None, 100.0)
    assert fence.ask_again(None, 100.0) == 104.0  # an outage that begins now is over the line then


def test_an_outage_counts_from_its_first_attempt():
    fence = Fence(5.0, 1.0)
    assert not fence.passed(10.0, 13.9)
    assert fence.ask_again(10.0, 13.9) == 14.0
    assert fence.passed(10.0, 14.0)


def test_an_answer_ends_it():
    fence = Fence(5.0, 1.0)
    assert fence.passed(10.0, 14.1)
    assert not fence.passed(None, 14.2)
    assert not fence.passed(14.2, 18.1)
    assert fence.passed(14.2, 18.2)


def test_who_was_suspended_has_another_interval():
    fence = Fence(5.0, 1.0)
    assert not fence.passed(10.0, 70.0)
    assert fence.ask_again(10.0, 70.0) == 71.0
    assert not fence.passed(10.0, 70.9)
    assert fence.passed(10.0, 71.0)


def test_the_extra_interval_is_for_one_outage():
    fence = Fence(5.0, 1.0)
    assert not fence.passed(10.0, 70.0)
    assert not fence.passed(None, 70.1)
    assert not fence.passed(80.0, 150.0)
    assert fence.ask_again(80.0, 150.0) == 151.0
