"""Whether the store answers, on a fake clock."""

from __future__ import annotations

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.reach import Reach
from elastic_core.rendezvous.settings import RendezvousTimeout
from elastic_core.testing import FakeClock

PATIENCE = RendezvousTimeout().heartbeat
AWAY = RendezvousConnectionError("connection refused")


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def aways():
    return []


@pytest.fixture
def reach(clock, aways, say):
    return Reach(clock, say.settings(), aways.append)


def test_it_counts_from_the_first_attempt_without_an_answer(reach, clock):
    assert reach.since is None
    begun = clock.now()
    reach.begin(begun)
    clock.advance(3.0)
    reach.begin(clock.now())
    assert reach.since == begun


def test_an_answer_counts_at_once_and_the_end_of_the_turn_ends_the_count(reach, clock):
    reach.begin(clock.now())
    clock.advance(0.5)
    assert reach.ask(lambda: "it") == "it"
    assert reach.since == clock.now()
    reach.end()
    assert reach.since is None


def test_pauses_double_up_to_a_second_and_start_anew_after_a_turn_that_went_through(reach, clock):
    pauses = [reach.pause() - clock.now() for _ in range(7)]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    reach.end()
    assert reach.pause() - clock.now() == pytest.approx(0.05)


def test_a_quick_answer_says_nothing_of_the_store(reach, aways):
    reach.ask(lambda: None)
    assert aways == []


@pytest.mark.parametrize("seconds", [1.5, 30.0])
def test_a_slow_answer_says_that_the_store_was_away(reach, clock, aways, seconds):
    reach.ask(lambda: clock.advance(seconds))
    assert aways == [clock.now()]


def test_so_does_the_first_answer_after_an_outage(reach, clock, aways):
    reach.fail(AWAY)
    reach.ask(lambda: None)
    assert aways == [clock.now()]
    reach.end()
    reach.ask(lambda: None)
    assert len(aways) == 1


def test_an_answer_that_fails_leaves_the_count_as_it_was(reach, clock):
    def fails():
        clock.advance(4.0)
        raise AWAY

    begun = clock.now()
    reach.begin(begun)
    with pytest.raises(RendezvousConnectionError):
        reach.ask(fails)
    assert reach.since == begun


def test_an_outage_is_logged_once_when_it_lasts_and_the_next_one_again(reach, clock, capsys):
    reach.begin(clock.now())
    reach.fail(AWAY)
    assert capsys.readouterr().err == ""
    clock.advance(PATIENCE)
    reach.fail(AWAY)
    reach.notice()
    told = capsys.readouterr().err
    assert told.count("store out of reach") == told.count("connection refused") == 1
    reach.end()
    reach.begin(clock.now())
    clock.advance(PATIENCE)
    reach.fail(AWAY)
    assert capsys.readouterr().err.count("store out of reach") == 1


def test_an_attempt_that_hangs_is_noticed_when_the_patience_is_over(reach, clock, capsys):
    begun = clock.now()
    reach.begin(begun)
    assert reach.notice() == begun + PATIENCE
    clock.advance(PATIENCE)
    assert reach.notice() == clock.now() + PATIENCE
    assert "it does not answer" in capsys.readouterr().err


def test_while_nothing_is_tried_there_is_nothing_to_notice(reach, clock, capsys):
    clock.advance(60.0)
    assert reach.notice() == clock.now() + PATIENCE
    assert capsys.readouterr().err == ""
