"""The views as the threads of a handler follow them."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from elastic_core.clock import SystemClock, later
from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.state import State
from elastic_core.rendezvous.view import View
from elastic_core.rendezvous.views import Views
from elastic_core.testing import FakeClock


@pytest.fixture
def views():
    return Views(FakeClock())


@pytest.mark.parametrize(
    "changes", [{"state": State(round=1)}, {"outage": RendezvousConnectionError("away")}, {"fault": ValueError("odd")}]
)
def test_listeners_hear_of_states_outages_and_faults(views, changes):
    heard = []
    views.subscribe(lambda: heard.append(views.last))
    views.take(replace(View(), **changes))
    assert heard == [replace(View(), **changes)]


@pytest.mark.parametrize("changes", [{"waiting": 3}, {"token": 7}])
def test_they_do_not_hear_of_the_rest_though_it_is_known(views, changes):
    heard = []
    views.subscribe(lambda: heard.append(views.last))
    views.take(replace(View(), **changes))
    assert heard == []
    assert views.last == replace(View(), **changes)


def test_a_listener_that_raises_keeps_nothing_from_the_others(views, capsys):
    heard = []
    views.subscribe(lambda: 1 / 0)
    views.subscribe(lambda: heard.append(views.last))
    views.take(View(state=State(round=1)))
    assert len(heard) == 1
    assert "a listener raised ZeroDivisionError" in capsys.readouterr().err


def test_a_deadline_that_has_passed_is_not_waited_for(views):
    with views.changed:
        assert not views.wait(FakeClock().now())


def test_who_waits_wakes_with_the_next_view():
    clock = SystemClock()
    views, waits, woken = Views(clock), threading.Event(), []

    def wait():
        with views.changed:
            waits.set()
            woken.append((views.wait(later(clock.now(), 20.0)), views.last.state))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waits.wait(20.0)
    views.take(View(state=State(round=1)))
    thread.join(20.0)
    assert woken == [(True, State(round=1))]
