"""Doctors that meet: each one's view of its peers, in pure steps, and in threads over a minimal backend."""

from __future__ import annotations

import threading

import pytest
from elastic_doctor.finding import level_of
from elastic_doctor.network import listening
from elastic_doctor.peers import Announcement, Doctor, PeerMeeting, Stage, cannot_reach, decoded, encoded, judged_peers
from elastic_testing import FakeClock

from elastic_core.clock import SystemClock, later
from elastic_core.errors import RendezvousConnectionError
from elastic_core.interfaces.backend import Announced
from elastic_core.rendezvous.store_backend import with_roster
from elastic_core.support.bounded import BackgroundCall

SAME = {"elastic-core": "1", "Python": "3.11", "torch": "2.13"}


def peer(name, **more):
    return Announcement(**{"name": name, "address": "127.0.0.1", "versions": SAME, **more})


def announced(peer, beats=1, key=None):
    return Announced(key or peer.name, encoded(peer), beats)


def test_announcement_survives_encoding():
    full = peer("b", port=7, stage=Stage.TOLD, unreachable={"c": "timed out"})
    assert decoded(encoded(full)) == full


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"\xff", b'{"version": 2}', b'{"version": 1, "name": 3}', b"[" * 9999]
)
def test_malformed_announcement_is_ignored(data):
    assert decoded(data) is None


def test_untrusted_announcement_is_limited_and_escaped():
    assert decoded(encoded(peer("x" * 2_000_000))) is None
    assert decoded(encoded(peer("\x1b[31mred"))).name == "\\x1b[31mred"


def test_dead_peers_are_not_counted():
    ghost, living, leased = peer("ghost"), peer("b"), peer("c")
    seen = PeerMeeting("a", 3).after_look(
        [announced(ghost, 4), announced(living, 1), announced(leased, None), announced(peer("a"), 1)]
    )
    assert set(seen.cards) == {"c"}
    assert not seen.met
    seen = seen.after_look([announced(ghost, 4), announced(living, 2), announced(leased, None)])
    assert set(seen.cards) == {"b", "c"}
    assert seen.met
    seen = seen.after_look([announced(ghost, 4), announced(living, 2)])
    assert set(seen.cards) == {"b"}, "a peer that leaves before all have met is not counted"


def test_changed_announcement_proves_a_live_peer():
    seen = PeerMeeting("a", 2).after_look([announced(peer("b"), 2)])
    assert not seen.met
    assert seen.after_look([announced(peer("b", stage=Stage.TOLD), 2)]).met


def test_stage_is_reached_when_all_present_peers_reach_it():
    seen = PeerMeeting("a", 2).after_look([announced(peer("b", stage=Stage.TOLD), None)])
    assert seen.reached(Stage.TOLD)
    assert not seen.reached(Stage.LEAVING)
    assert seen.after_look([]).reached(Stage.LEAVING), "a peer that has left has reached every stage"


def judged(*others, size=2):
    met = PeerMeeting("a", size).after_look([announced(other, None) for other in others])
    return list(judged_peers(met, peer("a"), 60.0))


def test_missing_peers_are_a_fault():
    (found,) = judged(peer("b"), size=4)
    assert (level_of(found), found.message) == ("fault", "2 of 4 doctors joined within 60 s: a, b")
    assert "same endpoint" in found.remedy


def test_matching_peers_are_ok():
    found = judged(peer("b"))
    assert [(level_of(item), item.name) for item in found] == [("ok", "peers"), ("ok", "peer-versions")]


def test_differing_peers_are_reported():
    newer = {**SAME, "torch": "2.14"}
    way, versions = judged(peer("b", versions=newer, unreachable={"a": "timed out"}))
    assert (level_of(way), way.name) == ("fault", "address")
    assert way.message == "b cannot connect to a at 127.0.0.1: timed out"
    assert level_of(versions) == "warning"
    assert versions.message == "torch 2.13 on a; 2.14 on b"


@pytest.mark.integration
def test_connection_to_a_peer_is_tested():
    with listening(2) as port:
        assert cannot_reach("127.0.0.1", port, 15.0) == ""
    assert cannot_reach("127.0.0.1", port, 15.0) == "connection refused"
    assert cannot_reach("a..b", port, 15.0)


def test_three_doctors_meet_over_a_minimal_backend(memory_backend):
    backend = memory_backend()
    stale = with_roster(backend, SystemClock())
    stale.announce("ghost", encoded(peer("ghost")))
    pause = threading.Event().wait

    def doctor(name):
        def reach(address, port):
            return "timed out" if (name, port) == ("b", 3) else ""

        clock = SystemClock()
        return Doctor(with_roster(backend, clock), name, peer(name, port=ord(name) - 96), clock, pause, reach)

    doctors = [doctor("a"), doctor("b"), doctor("c")]
    calls = [BackgroundCall(lambda doctor=doctor: doctor.meet(3, 30.0)) for doctor in doctors]
    a, b, c = (call.result(60.0) for call in calls)
    assert set(a.cards) == {"b", "c"}
    assert (b.reached(Stage.TOLD), set(c.cards)) == (True, {"a", "b"})
    assert a.cards["b"].unreachable == {"c": "timed out"}
    assert [entry.key for entry in stale.roster()] == ["ghost"], "all three have withdrawn"


class Leaving:
    """A store that stops as soon as this doctor has announced that it leaves, because its host leaves first."""

    def __init__(self, backend):
        self._backend, self._stopped = backend, False

    def announce(self, key, entry):
        place = self._backend.announce(key, entry)
        self._stopped = decoded(entry).stage is Stage.LEAVING
        return place

    def __getattr__(self, name):
        if self._stopped:
            raise RendezvousConnectionError("the store has stopped")
        return getattr(self._backend, name)


def test_doctors_meet_although_the_stores_host_leaves_first(memory_backend):
    backend, clock, pause = memory_backend(), SystemClock(), threading.Event().wait
    ends = with_roster(backend, clock), Leaving(with_roster(backend, clock))
    doctors = [Doctor(end, name, peer(name), clock, pause, lambda *_: "") for name, end in zip("ab", ends, strict=True)]
    calls = [BackgroundCall(lambda doctor=doctor: doctor.meet(2, 30.0)) for doctor in doctors]
    assert all(call.result(60.0).reached(Stage.TOLD) for call in calls)


def test_lone_doctor_gives_up_after_its_timeout(memory_backend):
    clock = FakeClock()
    backend = memory_backend()
    lonely = Doctor(with_roster(backend, clock), "a", peer("a"), clock, clock.advance, lambda *_: "")
    begun = clock.now()
    assert not lonely.meet(2, 30.0).met
    assert later(begun, 30.0) <= clock.now() <= later(begun, 31.0)
