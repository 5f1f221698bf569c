"""The contract for a `RosterBackend`: entries, heartbeats and notifications."""

from __future__ import annotations

import random
import statistics
import threading
import unittest
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from elastic_core.plugin import EntryDroppedError, RendezvousConnectionError, RosterBackend, SystemClock, later
from elastic_testing.state_promises import Clients, close, once_back, token_of, written
from elastic_testing.waiting import LONG, Background, eventually, raised, raises, together

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

    from elastic_core.plugin import Duration

_CLOCK = SystemClock()
_MOMENT: Duration = 0.1
_NODES = 8
_PUSHES = 5  # the number of notifications that are timed; the test checks the median of the times
_TURNS = 60
_THOUGHT: Duration = 0.005  # the longest pause before a turn, in seconds
_WAITS, _FEW = 6, 2  # number of waits, and how many of them may return too early


def shown(backend: RosterBackend) -> list[tuple[str, bytes]]:
    """Return the roster without heartbeat counters."""
    return [(announced.key, announced.entry) for announced in backend.roster()]


def keys(backend: RosterBackend) -> list[str]:
    """Return the keys of the roster."""
    return [announced.key for announced in backend.roster()]


def _has_rosters(backend: Any) -> None:
    if not isinstance(backend, RosterBackend):
        raise unittest.SkipTest("not a RosterBackend: the core keeps the entries inside the state")


class RosterPromises(Clients):
    """See `interfaces.backend.RosterBackend`, and `BackendContract` for the attributes. Every client announces its own
    key, as nodes do."""

    lease: ClassVar[Duration] = 20.0
    at_once: ClassVar[Duration] = 10.0
    pushed: ClassVar[Duration] = 1.0

    def _nodes(self, backend: Any, count: int) -> contextlib.AbstractContextManager[list[Any]]:
        """Create `count` clients in addition to `backend`. Skips the test if the backend has no roster."""
        _has_rosters(backend)
        return self.peers(backend, count)

    def test_roster_is_in_order_of_first_announcement(self, backend: Any) -> None:
        with self._nodes(backend, 2) as (one, two):
            assert backend.roster() == ()
            assert one.announce("z/1", b"first") == 0
            assert two.announce("a/1", b"second") >= 1
            assert one.announce("z/1", b"replaced") >= 0
            for client in (backend, one, two):
                assert shown(client) == [("z/1", b"replaced"), ("a/1", b"second")]

    def test_any_key_and_entry_is_kept(self, backend: Any) -> None:
        entries = [("a", b""), ("a/b", bytes(range(256))), ("a b%20", b"x" * 3000), ("ключ/1", b"\n")]
        with self._nodes(backend, len(entries)) as clients:
            for client, (key, entry) in zip(clients, entries, strict=True):
                client.announce(key, entry)
            assert shown(backend) == entries

    def test_withdrawn_entry_disappears_and_can_return(self, backend: Any) -> None:
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

    def test_withdrawn_node_notices_when_it_sends_heartbeats(self, backend: Any) -> None:
        with self._nodes(backend, 2) as (one, two):
            one.announce("a/1", b"")
            two.announce("b/1", b"")
            for _ in range(3):
                one.beat("a/1", leading=False, look=False)
            assert keys(two) == ["a/1", "b/1"]  # clients never withdraw an entry that they have not seen
            two.withdraw("a/1")
            assert keys(backend) == ["b/1"]
            beat = partial(one.beat, "a/1", leading=False, look=False)
            noticed = "the condition that a heartbeat notices the withdrawal"
            error = eventually(lambda: raised(beat), self.lease, noticed)
            assert isinstance(error, EntryDroppedError), f"the heartbeat raised {error!r}"
            assert keys(one) == ["b/1"]
            one.announce("a/1", b"again")
            one.beat("a/1", leading=False, look=False)
            assert shown(two) == [("b/1", b""), ("a/1", b"again")]

    def test_concurrent_announcements_are_all_listed(self, backend: Any) -> None:
        with self._nodes(backend, _NODES) as clients:
            names = [f"node{number}/1" for number in range(_NODES)]
            pairs = zip(clients, names, strict=True)
            older = together([partial(client.announce, name, name.encode()) for client, name in pairs])
            assert 0 in older, "announce did not return 0 for the oldest entry"
            assert sorted(shown(backend)) == [(name, name.encode()) for name in names]
            assert all(shown(client) == shown(backend) for client in clients)

    def test_heartbeat_counter_grows_or_is_hidden(self, backend: Any) -> None:
        with self._nodes(backend, 2) as (one, two):
            one.announce("a/1", b"")
            two.announce("b/1", b"")
            before = {announced.key: announced.beats for announced in backend.roster()}
            assert one.beat("a/1", leading=False, look=False) is None
            after = {announced.key: announced.beats for announced in backend.roster()}
            assert after["b/1"] == before["b/1"]
            assert (before["a/1"] is None) if after["a/1"] is None else (after["a/1"] != before["a/1"])

    def test_lease_drops_entry_of_dead_node(self, backend: Any) -> None:
        with self._nodes(backend, 1) as (node,):
            node.announce("a/1", b"")
            if any(entry.beats is not None for entry in backend.roster()):
                raise unittest.SkipTest("the backend shows heartbeats, by which the core detects failed nodes")
            close(node)
            eventually(lambda: not keys(backend), self.lease, "the condition that the dead node's entry is dropped")

    def test_leader_counter_grows_and_is_readable(self, backend: Any) -> None:
        with self._nodes(backend, 2) as (leader, other):
            leader.announce("a/1", b"")
            other.announce("b/1", b"")
            seen = []
            for _ in range(3):
                assert leader.beat("a/1", leading=True, look=False) is not None
                other.get_state()
                seen.append(other.beat("b/1", leading=False, look=True))
            assert seen == sorted(set(seen)), f"the counter did not grow with the leader's heartbeats: {seen}"
            own = [leader.beat("a/1", leading=True, look=True) for _ in range(2)]
            assert own[1] > own[0]

    def test_state_wait_returns_after_write(self, backend: Any) -> None:
        with self._nodes(backend, 1) as (waiter,):
            token = None
            for state in (b"1", b"2", b"2"):
                waiting = Background(partial(self._changed, waiter, token_of(waiter)))
                waiting.over(_MOMENT)
                token = written(backend, state, token)
                waiting.result()
                assert waiter.get_state()[0] == state

    def test_state_wait_with_stale_token_returns_immediately(self, backend: Any) -> None:
        with self._nodes(backend, 1) as (waiter,):
            token = written(backend, b"1", None)
            known = waiter.get_state()[1]
            written(backend, b"2", token)
            assert Background(lambda: waiter.wait_for_state(known, LONG)).result(self.at_once) is True

    def test_roster_wait_returns_after_every_change(self, backend: Any) -> None:
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

    def test_roster_wait_includes_changes_since_last_read(self, backend: Any) -> None:
        with self._nodes(backend, 1) as (node,):
            backend.roster()
            node.announce("a/1", b"")
            assert Background(lambda: backend.wait_for_roster(LONG)).result(self.at_once) is True

    def test_roster_wait_for_several_changes_returns(self, backend: Any) -> None:
        with self._nodes(backend, 3) as nodes:
            backend.roster()
            waiting = Background(lambda: backend.wait_for_roster(LONG, more=3))
            for number, node in enumerate(nodes):
                node.announce(f"node{number}/1", b"")
            assert waiting.result(self.at_once) is True

    def test_state_and_roster_waits_run_concurrently(self, backend: Any) -> None:
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
            waiting.result(self.at_once)

    def test_changes_are_pushed_promptly(self, backend: Any) -> None:
        """Notifications must be fast, because jobs wait to learn of failures, new nodes, and the end of the job."""
        with self._nodes(backend, 1) as (other,):

            def state(entry: bytes) -> float:
                token = token_of(backend)
                waiting = Background(partial(self._changed, backend, token))
                return self._delay(waiting, lambda: written(other, entry, token))

            def roster(entry: bytes) -> float:
                backend.roster()
                waiting = Background(partial(self._roster_is, backend, [("a/1", entry)]))
                return self._delay(waiting, lambda: other.announce("a/1", entry))

            for what in (state, roster):
                median = statistics.median(what(b"%d" % turn) for turn in range(_PUSHES))
                assert median <= self.pushed, (
                    f"notifications of a changed {what.__name__} took {median:.1f} s, limit {self.pushed:g} s (pushed)"
                )

    def test_state_change_during_wait_setup_is_seen(self, backend: Any) -> None:
        """Two clients take turns, so that each client writes just when the other one begins to wait."""
        with self._nodes(backend, 1) as (other,):
            written(backend, b"0", None)

            def play(client: Any, own: int) -> None:
                pauses = random.Random(own)
                for turn in range(1, _TURNS):
                    if turn % 2 == own:
                        threading.Event().wait(pauses.uniform(0, _THOUGHT))
                        client.set_state(b"%d" % turn, client.get_state()[1])
                    while int((found := client.get_state())[0]) < turn:
                        notified = client.wait_for_state(found[1], self.at_once)
                        assert notified, f"no notification of state {turn} within {self.at_once:g} s"

            together([partial(play, backend, 0), partial(play, other, 1)])

    def test_roster_change_during_wait_setup_is_seen(self, backend: Any) -> None:
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
                        notified = client.wait_for_roster(self.at_once)
                        assert notified, f"no notification of entry {turn} within {self.at_once:g} s"

            together([partial(play, backend, 0), partial(play, other, 1)])

    def test_waits_last_without_changes(self, backend: Any) -> None:
        """Occasional false notifications are allowed, because each of them costs only one read."""
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
                notified = Background(wait).result(self.at_once)
                assert notified in (True, False)
                if notified:
                    wrong += 1
                    look()
            assert wrong <= _FEW, f"{wrong} of {_WAITS} waits for the {what} reported a change although there was none"

    def test_entries_are_restored_after_data_loss(self, backend: Any) -> None:
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
            until = later(_CLOCK.now(), self.lease)  # not every heartbeat renews a lease
            for client, (key, entry) in zip(clients, entries, strict=True):
                while (key, entry) not in once_back(partial(shown, client)):
                    assert _CLOCK.now() < until, (
                        f"{key} was neither announced again nor reported as dropped by a heartbeat"
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

    def test_close_ends_waits(self, backend: Any) -> None:
        with self._nodes(backend, 1) as (client,):
            written(backend, b"1", None)
            client.roster()
            known = client.get_state()[1]
            waits = (lambda: client.wait_for_state(known, LONG), lambda: client.wait_for_roster(LONG))
            running = [Background(partial(self._ended, wait)) for wait in waits]
            for call in running:
                call.over(_MOMENT)
            client.close()
            for call in running:
                call.result(self.at_once)
            client.close()
            raises(RendezvousConnectionError, lambda: client.announce("late/1", b""))
            for wait in waits:
                assert Background(wait).result(self.at_once) is False

    def test_close_does_not_affect_other_clients(self, backend: Any) -> None:
        with self._nodes(backend, 2) as (one, two):
            written(one, b"1", None)
            two.announce("b/1", b"")
            one.close()
            written(two, b"2", two.get_state()[1])
            assert keys(backend) == ["b/1"]

    def test_properties_have_valid_values(self, backend: Any) -> None:
        _has_rosters(backend)
        assert backend.grace >= 0
        assert backend.vacant is False
        assert backend.hosts_store in (True, False)

    def test_roster_calls_report_lost_store(self, backend: Any) -> None:
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
            raises(RendezvousConnectionError, call)
        for wait in (lambda: backend.wait_for_state(token, _MOMENT), lambda: backend.wait_for_roster(_MOMENT)):
            error = raised(wait)
            assert error is None or isinstance(error, RendezvousConnectionError), (
                f"expected RendezvousConnectionError or no error, found {error!r}"
            )

    @staticmethod
    def _delay(waiting: Background[None], change: Callable[[], object]) -> float:
        """Return the seconds from the start of the change to the end of the call that waits for it."""
        waiting.over(_MOMENT)
        begun = _CLOCK.now()
        change()
        waiting.result()
        return _CLOCK.now() - begun

    @staticmethod
    def _changed(backend: RosterBackend, token: Any) -> None:
        """Wait the way the core's threads do: after a spurious notification, wait again."""
        wait = partial(backend.wait_for_state, token, LONG)
        eventually(lambda: wait() and token_of(backend) != token, LONG, "the condition that a wait reports the state")

    @staticmethod
    def _roster_is(backend: RosterBackend, expected: list[tuple[str, bytes]]) -> None:
        until = later(_CLOCK.now(), LONG)
        while shown(backend) != expected:
            assert _CLOCK.now() < until, f"expected {expected}, found {shown(backend)}"
            assert backend.wait_for_roster(LONG), f"no notification of a roster change within {LONG:g} s"

    @staticmethod
    def _ended(wait: Callable[[], bool]) -> None:
        """Repeat the wait until it returns False. False notifications are allowed."""
        eventually(lambda: not wait(), LONG, "the condition that the wait reports no change")
