"""Doctors that meet: what each sees of the others, in pure steps and over a backend of two methods in threads."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from elastic_core.clock import SystemClock, later
from elastic_core.interfaces.backend import Announced
from elastic_core.operate.doctor.meeting import Card, Meeting, Stage, decoded, encoded, looked, offset_of
from elastic_core.operate.doctor.network import listening
from elastic_core.operate.doctor.peers import Doctor, cannot_reach, judged_peers
from elastic_core.rendezvous.over_state import with_roster
from elastic_core.support.bounded import Call
from elastic_core.testing import FakeClock

SAME = {"elastic-core": "1", "Python": "3.11", "torch": "2.13"}


def card(name, **more):
    return Card(**{"name": name, "address": "127.0.0.1", "versions": SAME, **more})


def shown(card, beats=1, key=None):
    return Announced(key or card.name, encoded(card), beats)


def test_a_card_comes_back_as_it_was():
    full = card("b", port=7, stage=Stage.TOLD, wall=1.5, behind={"a": -0.5}, unreachable={"c": "timed out"})
    assert decoded(encoded(full)) == full


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"\xff", b'{"version": 2}', b'{"version": 1, "name": 3}', b"[" * 9999]
)
def test_what_is_no_card(data):
    assert decoded(data) is None


def test_a_card_from_outside_is_not_trusted():
    assert decoded(encoded(card("x" * 2_000_000))) is None
    assert decoded(encoded(card("\x1b[31mred"))).name == "'\\x1b[31mred'"


def test_who_died_is_not_there():
    ghost, living, leased = card("ghost"), card("b"), card("c")
    seen = looked(Meeting("a", 3), [shown(ghost, 4), shown(living, 1), shown(leased, None), shown(card("a"), 1)], 0.0)
    assert set(seen.cards) == {"c"}
    assert not seen.met
    seen = looked(seen, [shown(ghost, 4), shown(living, 2), shown(leased, None)], 0.0)
    assert set(seen.cards) == {"b", "c"}
    assert seen.met
    seen = looked(seen, [shown(ghost, 4), shown(living, 2)], 0.0)
    assert set(seen.cards) == {"b"}, "who goes before all have met was not there"


def test_a_card_that_changes_lives_too():
    seen = looked(Meeting("a", 2), [shown(card("b", wall=1.0), 2)], 0.0)
    assert not seen.met
    assert looked(seen, [shown(card("b", wall=2.0), 2)], 0.0).met


def test_how_far_all_have_come():
    seen = looked(Meeting("a", 2), [shown(card("b", stage=Stage.TIMING), None)], 0.0)
    assert seen.reached(Stage.TIMING)
    assert not seen.reached(Stage.TOLD)
    assert looked(seen, [], 0.0).reached(Stage.LEAVING), "who has left is done"


@pytest.mark.parametrize("ahead", [-40.0, 0.0, 3.0])
def test_a_difference_of_clocks_is_free_of_the_way_there(ahead):
    """The clock of b is `ahead`; its cards take 0.2 s to us, and ours 0.2 s to it."""
    seen = Meeting("a", 2)
    for now in (100.0, 101.0, 105.0):
        late = 5.0 if now == 101.0 else 0.2
        theirs = {"a": -ahead - 0.2}
        seen = looked(seen, [shown(card("b", wall=now + ahead - late, behind=theirs), None)], now)
    found = offset_of(seen, "b")
    assert found.ahead == pytest.approx(ahead)
    assert found.margin == pytest.approx(0.2)
    assert offset_of(looked(Meeting("a", 2), [shown(card("b"), None)], 0.0), "b") is None


def judged(*others, own=None, size=2, behind=None):
    met = looked(Meeting("a", size), [shown(other, None) for other in others], 0.0)
    return list(judged_peers(replace(met, behind=behind or met.behind), own or card("a"), 60.0))


def test_too_few():
    (found,) = judged(card("b"), size=4)
    assert (found.level.value, found.told) == ("fault", "2 of 4 doctors met within 60 s: a, b")
    assert "same endpoint" in found.advice


def test_all_is_well_among_them():
    found = judged(card("b", behind={"a": -0.01}), behind={"b": -0.01})
    assert [(item.level.value, item.check.value) for item in found] == [
        ("ok", "peers"),
        ("ok", "peer-versions"),
        ("ok", "clocks"),
    ]
    assert "0.000 s ahead of ours (within 0.010 s)" in found[-1].told


def test_what_differs_among_them():
    newer = {**SAME, "torch": "2.14"}
    far = card("b", versions=newer, behind={"a": 29.9}, unreachable={"a": "timed out"})
    way, versions, clocks = judged(far, behind={"b": -30.1})
    assert (way.level.value, way.check.value) == ("fault", "address")
    assert way.told == "b cannot connect to a at 127.0.0.1: timed out"
    assert versions.level.value == "warning"
    assert versions.told == "torch 2.13 on a; 2.14 on b"
    assert clocks.level.value == "note"
    assert "b is 30.000 s behind ours (within 0.100 s)" in clocks.told
    assert "harmless" in clocks.advice
    (*_, unknown) = judged(card("b"))
    assert "could not be compared" in unknown.told


def test_the_way_to_another():
    with listening(2) as port:
        assert cannot_reach("127.0.0.1", port, 15.0) == ""
    assert cannot_reach("127.0.0.1", port, 15.0) == "connection refused"
    assert cannot_reach("a..b", port, 15.0)


class Ahead(SystemClock):
    """A machine whose wall clock is an hour ahead."""

    def timestamp(self):
        return super().timestamp() + 3600


def test_three_meet_over_a_backend_of_two_methods(memory_backend):
    backend = memory_backend()
    stale = with_roster(backend, SystemClock())
    stale.announce("ghost", encoded(card("ghost")))
    pause = threading.Event().wait

    def doctor(name, clock):
        def reach(address, port):
            return "timed out" if (name, port) == ("b", 3) else ""

        entries = with_roster(backend, clock)
        return Doctor(entries, name, card(name, port=ord(name) - 96), clock, pause, reach)

    doctors = [doctor("a", SystemClock()), doctor("b", SystemClock()), doctor("c", Ahead())]
    calls = [Call(lambda doctor=doctor: doctor.meet(3, 30.0)) for doctor in doctors]
    a, b, c = (call.result(60.0) for call in calls)
    assert set(a.cards) == {"b", "c"}
    assert offset_of(a, "c").ahead == pytest.approx(3600, abs=1.0)
    assert offset_of(c, "b").ahead == pytest.approx(-3600, abs=1.0)
    assert offset_of(b, "a").ahead == pytest.approx(0, abs=1.0)
    assert a.cards["b"].unreachable == {"c": "timed out"}
    assert [entry.key for entry in stale.roster()] == ["ghost"], "they have cleaned up"


def test_one_waits_alone_for_its_patience(memory_backend):
    clock = FakeClock()
    backend = memory_backend()
    lonely = Doctor(with_roster(backend, clock), "a", card("a"), clock, clock.advance, lambda *_: "")
    begun = clock.now()
    assert not lonely.meet(2, 30.0).met
    assert later(begun, 30.0) <= clock.now() <= later(begun, 31.0)
