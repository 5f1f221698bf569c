"""What follows from what a watch stream tells."""

import pytest
from elastic_etcd.client.values import Event, KeyValue, News
from elastic_etcd.client.watch_events import Action, Position, Step, WatchMessage, is_denial, pause_after, step
from hypothesis import given
from hypothesis import strategies as st


def change(revision, key=b"k"):
    return Event(False, KeyValue(key, b"%d" % revision, 1, revision, 1, 0))


def message(*revisions, revision=None, **more):
    events = tuple(change(number) for number in revisions)
    return WatchMessage(revision if revision is not None else revisions[-1], 7, events=events, **more)


STANDS = Position(10, 7, silent=False)


def test_from_now_on_begins_at_the_revision_told():
    assert step(Position(), WatchMessage(5, 7, created=True)) == Step(Position(5, 7, silent=False), News(5))


def test_after_a_revision_begins_there_though_the_store_is_further():
    assert step(Position(3), WatchMessage(5, 7, created=True)) == Step(Position(3, 7, silent=False), News(3))


def test_that_it_stands_again_is_no_news():
    assert step(STANDS, WatchMessage(50, 7, created=True)) == Step(STANDS)


def test_events_move_it_on_to_the_last_of_them():
    done = step(STANDS, message(11, 12, revision=99))  # the server is at 99, and has not told all of it yet
    assert done == Step(Position(12, 7, silent=False), News(12, (change(11), change(12))))


def test_what_was_told_is_not_told_again():
    assert step(STANDS, message(9, 10, 11)).news == News(11, (change(11),))
    assert step(STANDS, message(9, 10)) == Step(STANDS)


def test_progress_moves_it_on():
    assert step(STANDS, message(revision=40)) == Step(Position(40, 7, silent=False), News(40))


def test_what_was_forgotten_means_to_begin_anew_and_to_say_so():
    done = step(STANDS, WatchMessage(0, 7, cancelled=True, compacted=30))
    assert (done.action, done.news, done.position.start) == (Action.AGAIN, None, 0)
    assert step(done.position, WatchMessage(35, 7, created=True)).news == News(35, resync=True)


def test_another_cluster_means_the_same():
    done = step(STANDS, WatchMessage(2, 8, created=True))
    assert (done.action, done.news, done.position.start) == (Action.AGAIN, None, 0)
    assert step(done.position, WatchMessage(2, 8, created=True)).news == News(2, resync=True)


@pytest.mark.parametrize(
    ("reason", "action"),
    [
        ("rpc error: code = PermissionDenied desc = etcdserver: permission denied", Action.DENIED),
        ("etcdserver: invalid auth token", Action.DENIED),
        ("etcdserver: no leader", Action.BROKEN),
        ("", Action.BROKEN),
    ],
)
def test_a_cancelled_watch(reason, action):
    assert step(STANDS, WatchMessage(0, 7, created=True, cancelled=True, reason=reason)) == Step(STANDS, action=action)
    assert is_denial(reason) == (action is Action.DENIED)


def test_every_member_is_tried_before_it_rests():
    assert [pause_after(failures, 3) for failures in range(1, 9)] == [0, 0, 0.1, 0.2, 0.4, 0.8, 1, 1]
    assert pause_after(10_000, 1) == 1


@given(st.lists(st.integers(1, 5), min_size=1), st.data())
def test_whatever_breaks_nothing_is_lost_or_told_twice(sizes, data):
    """A stream that breaks anywhere and is opened again where the position says, perhaps with some repeated."""
    last, position, told = sum(sizes), Position(0, 0), []
    position = step(position, WatchMessage(0 + 1, 7, created=True)).position
    history = list(range(2, last + 2))
    while position.after < history[-1]:
        start = max(2, position.start - data.draw(st.integers(0, 3)))
        position = step(position, WatchMessage(history[-1], 7, created=True)).position
        pending = [number for number in history if number >= start]
        for _ in range(data.draw(st.integers(1, 4))):
            size = data.draw(st.integers(1, 4))
            batch, pending = pending[:size], pending[size:]
            if batch:
                done = step(position, message(*batch, revision=history[-1]))
                position = done.position
                told += [event.pair.mod_revision for event in done.news.events] if done.news else []
    assert told == history
