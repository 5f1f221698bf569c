"""What the parts of a keeper share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.known import Known
from elastic_core.rendezvous.state import State


@pytest.fixture
def views():
    return []


@pytest.fixture
def known(views):
    return Known("a", views.append)


def test_before_the_first_read_the_state_is_a_new_one_and_everything_is_news(known):
    assert known.view.state is None
    assert known.state == State()
    assert (known.state_news, known.roster_news, known.line_news) == (True, True, False)


def test_a_view_is_published_once(known, views):
    outage = RendezvousConnectionError("away")
    known.show(replace(known.view, outage=outage))
    known.show(replace(known.view, outage=outage))
    assert [view.outage for view in views] == [outage]
    assert views == [known.view]


def test_a_state_that_was_taken_over_is_news_of_the_roster(known, views, say):
    known.roster_news = False
    known.took(say.state("ab"), 7)
    assert (views[-1].state, views[-1].token) == (say.state("ab"), 7)
    assert known.roster_news


def test_it_remembers_the_last_round_that_formed_with_this_node(known, say):
    known.took(say.state("ab", round=3), 1)
    known.took(say.state("b", round=4), 2)
    assert known.seated_in == 3


def test_a_lost_entry_is_told_to_nobody(known, views, say):
    known.show(replace(known.view, announced=say.entry("a")))
    known.lost_entry()
    assert known.view.announced is None
    assert len(views) == 1


def test_after_a_turn_that_went_wrong_state_and_roster_are_news(known):
    known.state_news = known.roster_news = False
    known.unsure()
    assert known.state_news
    assert known.roster_news
