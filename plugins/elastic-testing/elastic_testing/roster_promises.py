"""The contract of a `RosterBackend`: entries, heartbeats and notifications."""

from __future__ import annotations

import random
import threading
import unittest
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from elastic_core.clock import SystemClock, later
from elastic_core.errors import RendezvousConnectionError
from elastic_core.interfaces.backend import EntryDroppedError, RosterBackend
from elastic_testing.state_promises import Clients, close, once_back, written
from elastic_testing.waiting import LONG, Background, raised, together

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

    from elastic_core.clock import Duration

_CLOCK = SystemClock()
_MOMENT: Duration = 0.1
_NODES = 8
_PUSHES = 5  # the median is tested
_TURNS = 60
_THOUGHT: Duration = 0.005  # the longest pause before a turn
_WAITS, _FEW = 6, 2


def shown(backend: RosterBackend) -> list[tuple[str, bytes]]:
    """The roster without heartbeat counters."""
    return [(announced.key, announced.entry) for announced in backend.roster()]


def keys(backend: RosterBackend) -> list[str]:
    """The keys of the roster."""
    return [announced.key for announced in backend.roster()]


def _has_rosters(backend: Any) -> None:
    if not isinstance(backend, RosterBackend):
        raise unittest.SkipTest("a backend of two methods: the core keeps its entries inside the state")


class RosterPromises(Clients):
    """See `interfaces.backend.RosterBackend`. Every client announces its own key, as nodes do.

    Attributes:
        lease: seconds within which the store drops the entry of a node without heartbeats, for backends that show no
            heartbeats.
        at_once: seconds within which calls must return that should return immediately, on any machine.
        pushed: seconds from the start of a change within which a waiting client must be notified. Larger for backends
            that have to poll, because their store does not push changes.
    """

    lease: ClassVar[Duration] = 20.0
    at_once: ClassVar[Duration] = 10.0
    pushed: ClassVar[Duration] = 1.0

    def _nodes(self, backend: Any, count: int) -> contextlib.AbstractContextManager[list[Any]]:
        """`count` clients in addition to `backend`. Skips the test if it has no roster."""
        _has_rosters(backend)
        return self.peers(backend, count)

    def test_entries_come_in_the_order_of_their_first_announcement(self, backend: Any) -> None:
        with self._nodes(backend, 2) as (one, two):
            assert backend.roster() == ()
            assert one.announce("z/1", b"first") == 0
            assert two.announce("a/1", b"second") >= 1
            assert one.announce("z/1", b"replaced") >= 0
            for client in (backend, one, two):
                assert shown(client) == [("z/1", b"replaced"), ("a/1", b"second")]

    def test_keys_and_entries_may_hold_anything(self, backend: Any) -> None:
        _has_rosters(backend)
        entries = [("a", b""), ("a/b", bytes(range(256))), ("a b%20", b"x" * 3000), ("ключ/1", b"\n")]
        with self.peers(backend, len(entries)) as clients:
            for client, (key, entry) in zip(clients, entries, strict=True):
                client.announce(key, entry)
            assert shown(backend) == entries

    def test_who_withdraws_is_gone_for_everybody_and_may_come_again(self, backend: Any) -> None:
        with self._nodes(backend, 2) as (one, two):
            one.announce("a/1", b"1")
            two.announce("b/1", b"2")
            assert keys(backend) == ["a/1", "b/1"]
            one.withdraw("a/1")
            one.withdraw("a/1")
            one.withdraw("never/1")
            with self.peers(backend, 1) as (newcomer,):
                assert keys(backend) == keys(two) == keys(newcomer) == ["b/1"]
            one.announce("a/1", b"3")
            assert sorted(shown(backend)) == [("a/1", b"3"), ("b/1", b"2")]

    def test_an_entry_can_be_withdrawn_by_another_node(self, backend: Any) -> None:
        with self._nodes(backend, 2) as (one, two):
            one.announce("a/1", b"")
            two.announce("b/1", b"")
            assert keys(two) == ["a/1", "b/1"]  # clients never withdraw an entry that they have not seen
            two.withdraw("a/1")
            assert keys(backend) == keys(one) == ["b/1"]

    def test_many_announce_at_the_same_time(self, backend: Any) -> None:
        with self._nodes(backend, _NODES) as clients:
            names = [f"node{number}/1" for number in range(_NODES)]
            pairs = zip(clients, names, strict=True)
            older = together([partial(client.announce, name, name.encode()) for client, name in pairs])
            assert 0 in older, "expected that the oldest entry is told that none is older"
            assert sorted(shown(backend)) == [(name, name.encode()) for name in names]
            assert all(shown(client) == shown(backend) for client in clients)

    def test_a_beat_shows_or_the_store_watches_itself(self, backend: Any) -> None:
        with self._nodes(backend, 2) as (one, two):
            one.announce("a/1", b"")
            two.announce("b/1", b"")
            before = {announced.key: announced.beats for announced in backend.roster()}
            assert one.beat("a/1", leading=False, look=False) is None
            after = {announced.key: announced.beats for announced in backend.roster()}
            assert after["b/1"] == before["b/1"]
            assert (before["a/1"] is None) if after["a/1"] is None else (after["a/1"] != before["a/1"])

    def test_without_beats_an_entry_goes_with_its_node(self, backend: Any) -> None:
        with self._nodes(backend, 1) as (node,):
            node.announce("a/1", b"")
            if any(entry.beats is not None for entry in backend.roster()):
                raise unittest.SkipTest("it shows beats: the core sees who is gone")
            close(node)
            until = later(_CLOCK.now(), self.lease)
            while keys(backend):
                assert _CLOCK.now() < until, f"expected the entry of a dead node to go within {self.lease:g} s"
                backend.wait_for_roster(0.5)

    def test_who_leads_counts_up_and_who_looks_sees_it(self, backend: Any) -> None:
        with self._nodes(backend, 2) as (leader, other):
            leader.announce("a/1", b"")
            other.announce("b/1", b"")
            seen = []
            for _ in range(3):
                assert leader.beat("a/1", leading=True, look=False) is not None
                other.get_state()
                seen.append(other.beat("b/1", leading=False, look=True))
            assert seen == sorted(set(seen)), f"expected a counter that grows while somebody leads, found {seen}"
            own = [leader.beat("a/1", leading=True, look=True) for _ in range(2)]
            assert own[1] > own[0]

    def test_waiting_for_the_state_ends_when_it_is_written(self, backend: Any) -> None:
        with self._nodes(backend, 1) as (waiter,):
            found, token = waiter.get_state(), None
            for state in (b"1", b"2", b"2"):
                known = None if found is None else found[1]
                waiting = Background(partial(self._changed, waiter, known))
                waiting.over(_MOMENT)
                token = written(backend, state, token)
                assert waiting.result() is True
                found = waiter.get_state()
                assert found[0] == state

    def test_waiting_for_a_state_that_was_written_ends_at_once(self, backend: Any) -> None:
        with self._nodes(backend, 1) as (waiter,):
            token = written(backend, b"1", None)
            known = waiter.get_state()[1]
            written(backend, b"2", token)
            assert Background(lambda: waiter.wait_for_state(known, LONG)).result(self.at_once) is True

    def test_waiting_for_the_roster_ends_when_somebody_comes_changes_or_goes(self, backend: Any) -> None:
        with self._nodes(backend, 1) as (node,):
            acts: tuple[Callable[[], object], ...] = (
                lambda: node.announce("a/1", b"1"),
                lambda: node.announce("a/1", b"2"),
                lambda: node.withdraw("a/1"),
            )
            expected: tuple[list[tuple[str, bytes]], ...] = ([("a/1", b"1")], [("a/1", b"2")], [])
            for act, then in zip(acts, expected, strict=True):
                backend.roster()
                waiting = Background(partial(self._roster_is, backend, then))
                waiting.over(_MOMENT)
                act()
                waiting.result()

    def test_what_happened_since_the_last_look_ends_a_wait_for_the_roster(self, backend: Any) -> None:
        with self._nodes(backend, 1) as (node,):
            backend.roster()
            node.announce("a/1", b"")
            assert Background(lambda: backend.wait_for_roster(LONG)).result(self.at_once) is True

    def test_who_waits_for_several_is_told_when_they_are_there(self, backend: Any) -> None:
        with self._nodes(backend, 3) as nodes:
            backend.roster()
            waiting = Background(lambda: backend.wait_for_roster(LONG, more=3))
            for number, node in enumerate(nodes):
                node.announce(f"node{number}/1", b"")
            assert waiting.result(self.at_once) is True

    def test_both_waits_last_side_by_side(self, backend: Any) -> None:
        with self._nodes(backend, 1) as (other,):
            token = written(backend, b"1", None)
            known = backend.get_state()[1]
            backend.roster()
            waiting = Background(partial(self._changed, backend, known))
            roster = Background(partial(self._roster_is, backend, [("a/1", b"")]))
            waiting.over(_MOMENT)
            other.announce("a/1", b"")
            roster.result(self.at_once)
            written(other, b"2", token)
            assert waiting.result(self.at_once) is True

    def test_waits_end_in_time_when_nothing_happens(self, backend: Any) -> None:
        _has_rosters(backend)
        token = written(backend, b"1", None)
        backend.roster()
        for wait in (lambda: backend.wait_for_state(token, _MOMENT), lambda: backend.wait_for_roster(_MOMENT)):
            assert Background(wait).result(self.at_once) in (True, False)
            assert Background(wait).result(self.at_once) in (True, False)

    def test_changes_are_pushed_and_not_asked_for_now_and_then(self, backend: Any) -> None:
        """Notifications must be fast, because jobs wait for them: a failure, a new node, the end."""
        with self._nodes(backend, 1) as (other,):
            token: Any = None

            def write(turn: int) -> None:
                nonlocal token
                token = written(other, b"%d" % turn, token)

            def state(turn: int) -> None:
                found = backend.get_state()
                waiting = Background(partial(self._changed, backend, None if found is None else found[1]))
                self._timed(waiting, partial(write, turn), delays)

            def roster(turn: int) -> None:
                backend.roster()
                waiting = Background(partial(self._roster_is, backend, [("a/1", b"%d" % turn)]))
                self._timed(waiting, partial(other.announce, "a/1", b"%d" % turn), delays)

            for what in (state, roster):
                delays: list[float] = []
                for turn in range(_PUSHES):
                    what(turn)
                median = sorted(delays)[_PUSHES // 2]
                told = f"expected to be told of a change of the {what.__name__} within {self.pushed:g} s"
                assert median <= self.pushed, f"{told} (pushed), found {median:.1f} s"

    def test_no_change_of_the_state_is_missed_though_it_comes_while_a_wait_begins(self, backend: Any) -> None:
        """Two clients take turns, so that writes coincide with the start of the other client's wait."""
        with self._nodes(backend, 1) as (other,):
            written(backend, b"0", None)

            def play(client: Any, own: int) -> None:
                pauses = random.Random(own)
                for turn in range(1, _TURNS):
                    if turn % 2 == own:
                        threading.Event().wait(pauses.uniform(0, _THOUGHT))
                        client.set_state(b"%d" % turn, client.get_state()[1])
                    while int((found := client.get_state())[0]) < turn:
                        told = client.wait_for_state(found[1], self.at_once)
                        assert told, f"expected to be told of the state {turn}, found that {self.at_once:g} s ran out"

            together([partial(play, backend, 0), partial(play, other, 1)])

    def test_no_change_of_the_roster_is_missed_though_it_comes_while_a_wait_begins(self, backend: Any) -> None:
        with self._nodes(backend, 1) as (other,):
            names = ("a/1", "b/1")
            for client, name in zip((backend, other), names, strict=True):
                client.announce(name, b"0")

            def play(client: Any, own: int) -> None:
                pauses = random.Random(own)
                for turn in range(1, _TURNS):
                    if turn % 2 == own:
                        threading.Event().wait(pauses.uniform(0, _THOUGHT))
                        client.announce(names[own], b"%d" % turn)
                    while int(dict(shown(client))[names[turn % 2]]) < turn:
                        told = client.wait_for_roster(self.at_once)
                        assert told, f"expected to be told of the entry {turn}, found that {self.at_once:g} s ran out"

            together([partial(play, backend, 0), partial(play, other, 1)])

    def test_waits_last_while_nothing_happens(self, backend: Any) -> None:
        """Occasional false notifications are allowed, because they cost only one read."""
        _has_rosters(backend)
        token = written(backend, b"1", None)
        backend.roster()
        waits: dict[str, tuple[Callable[[], bool], Callable[[], object]]] = {
            "state": (lambda: backend.wait_for_state(token, _MOMENT), backend.get_state),
            "roster": (lambda: backend.wait_for_roster(_MOMENT), backend.roster),
        }
        for what, (wait, look) in waits.items():
            wrong = 0
            for _ in range(_WAITS):
                if Background(wait).result(self.at_once):
                    wrong += 1
                    look()
            told = f"expected waits for the {what} to last while nothing happens"
            assert wrong <= _FEW, f"{told}, found that {wrong} of {_WAITS} told of a change"

    def test_a_store_that_comes_back_empty_is_told_and_filled_anew(self, backend: Any) -> None:
        """The backend must announce its node again, or report at the next heartbeat that the entry was dropped."""
        with self._nodes(backend, 1) as (other,):
            entries = [("a/1", b"a"), ("b/1", b"b")]
            clients = (backend, other)
            token = written(backend, b"1", None)
            for client, announced in zip(clients, entries, strict=True):
                client.announce(*announced)
            assert all(shown(client) == entries for client in clients)
            assert other.get_state()[1] == token
            self.forget(backend)
            until = later(_CLOCK.now(), self.lease)  # a lease is not renewed with every beat
            for client, (key, entry) in zip(clients, entries, strict=True):
                while (key, entry) not in once_back(partial(shown, client)):
                    assert _CLOCK.now() < until, (
                        f"expected {key} to be announced again, or its beats to say that it is gone"
                    )
                    try:
                        once_back(partial(client.beat, key, leading=False, look=False))
                    except EntryDroppedError:
                        once_back(partial(client.announce, key, entry))
                    threading.Event().wait(_THOUGHT)
                once_back(client.get_state)
            for client in clients:
                assert sorted(once_back(partial(shown, client))) == entries
                waiting = Background(partial(once_back, partial(client.wait_for_state, token, LONG)))
                assert waiting.result(self.at_once) is True

    def test_close_lets_waits_come_back(self, backend: Any) -> None:
        _has_rosters(backend)
        written(backend, b"1", None)
        with self.peers(backend, 1) as (client,):
            client.roster()
            known = client.get_state()[1]
            waits = [
                Background(lambda: self._nothing(lambda: client.wait_for_state(known, LONG))),
                Background(lambda: self._nothing(lambda: client.wait_for_roster(LONG))),
            ]
            for wait in waits:
                wait.over(_MOMENT)
            client.close()
            assert [wait.result(self.at_once) for wait in waits] == [False, False]
            client.close()
            error = raised(lambda: client.announce("late/1", b""))
            assert isinstance(error, RendezvousConnectionError), f"expected that it is closed, found {error!r}"
            assert Background(lambda: client.wait_for_state(known, LONG)).result(self.at_once) is False
            assert Background(lambda: client.wait_for_roster(LONG)).result(self.at_once) is False

    def test_one_that_closes_leaves_the_others_alone(self, backend: Any) -> None:
        with self._nodes(backend, 2) as (one, two):
            written(one, b"1", None)
            two.announce("b/1", b"")
            one.close()
            written(two, b"2", two.get_state()[1])
            assert keys(backend) == ["b/1"]

    def test_the_rest_that_it_tells(self, backend: Any) -> None:
        _has_rosters(backend)
        assert backend.grace >= 0
        assert backend.vacant is False
        assert backend.hosts_store in (True, False)

    def test_a_store_that_is_gone_is_told_by_every_call(self, backend: Any) -> None:
        _has_rosters(backend)
        token = written(backend, b"1", None)
        backend.announce("a/1", b"")
        backend.roster()
        self.lose(backend)
        calls: tuple[Callable[[], object], ...] = (
            lambda: backend.announce("a/1", b"2"),
            lambda: backend.beat("a/1", leading=True, look=True),
            backend.roster,
            lambda: backend.withdraw("a/1"),
        )
        for call in calls:
            error = raised(call)
            assert isinstance(error, RendezvousConnectionError), f"expected RendezvousConnectionError, found {error!r}"
        for wait in (lambda: backend.wait_for_state(token, _MOMENT), lambda: backend.wait_for_roster(_MOMENT)):
            error = raised(wait)
            assert error is None or isinstance(error, RendezvousConnectionError), f"found {error!r}"

    @staticmethod
    def _timed(waiting: Background[Any], change: Callable[[], object], delays: list[float]) -> None:
        waiting.over(_MOMENT)
        begun = _CLOCK.now()
        change()
        waiting.result()
        delays.append(_CLOCK.now() - begun)

    @staticmethod
    def _changed(backend: RosterBackend, token: Any) -> bool:
        """Wait as the core's threads do: after a false notification, wait again."""
        until = later(_CLOCK.now(), LONG)
        while _CLOCK.now() < until:
            if backend.wait_for_state(token, LONG):
                found = backend.get_state()
                if (None if found is None else found[1]) != token:
                    return True
        return False

    @staticmethod
    def _roster_is(backend: RosterBackend, expected: list[tuple[str, bytes]]) -> None:
        until = later(_CLOCK.now(), LONG)
        while shown(backend) != expected:
            assert _CLOCK.now() < until, f"expected {expected}, found {shown(backend)}"
            assert backend.wait_for_roster(LONG), "expected to be told of a change, found that the time ran out"

    @staticmethod
    def _nothing(wait: Callable[[], bool]) -> bool:
        """Wait until the wait returns False. It may return True wrongly a few times."""
        until = later(_CLOCK.now(), LONG)
        while wait():
            assert _CLOCK.now() < until
        return False
