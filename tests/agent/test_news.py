"""What the news tell of the agent: when it last turned to them, and whether somebody asks it again to leave."""

from __future__ import annotations

import signal

import pytest

from elastic_core.agent.news import News
from elastic_core.testing import FakeClock

INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.fixture
def make_news():
    made = []

    def make_news(clock):
        made.append(News(clock))
        return made[-1]

    yield make_news
    for news in made:
        news.close()


class Watched(FakeClock):
    """Whoever looks at it is watched himself, by another thread as it were. `watch`: is called; may look at it too."""

    watch = None

    def now(self):
        self._be_watched()
        return super().now()

    def timestamp(self):
        self._be_watched()
        return super().timestamp()

    def _be_watched(self):
        watch, self.watch = self.watch, None
        if watch:
            watch()
        self.watch = watch


def test_a_wait_that_has_just_ended_is_no_time_without_a_turn(make_news):
    clock, ages = Watched(), []
    news = make_news(clock)
    clock.advance(3600.0)
    clock.watch = lambda: ages.append(clock.timestamp() - news.alive_at())
    news.round_changed()
    news.wait((), None)
    assert (len(ages) > 1, set(ages)) == (True, {0.0})


@pytest.mark.parametrize("taken_at_once", [True, False])
@pytest.mark.parametrize(
    ("signals", "urged"),
    [
        ([(0.0, TERM)], False),
        ([(0.0, TERM), (0.0, TERM)], False),
        ([(0.0, TERM), (0.4, TERM)], False),
        ([(0.0, TERM), (0.5, TERM)], True),
        ([(0.0, TERM), (0.0, INT)], True),
    ],
)
def test_what_counts_is_when_a_signal_came_and_not_when_it_was_taken(signals, urged, taken_at_once, make_news):
    """The agent may be busy in between: to tell the others that it leaves takes seconds where the store is slow."""
    clock = FakeClock()
    news = make_news(clock)
    for after, signum in signals:
        clock.advance(after)
        news.signalled(signum)
        if taken_at_once:
            news.wait((), None)
    clock.advance(2.0)
    news.round_changed()
    news.wait((), None)
    assert (news.signals, news.urged) == ([signum for _, signum in signals], urged)


def test_a_signal_that_is_taken_late_did_not_come_late(make_news):
    clock = FakeClock()
    news = make_news(clock)
    news.signalled(TERM)
    news.wait((), None)
    news.signalled(TERM)
    clock.advance(2.0)
    news.wait((), None)
    assert not news.urged
