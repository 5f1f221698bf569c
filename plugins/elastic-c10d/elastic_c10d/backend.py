"""The backend `c10d`: versions of the state and a log of announcements in a torch store."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from elastic_c10d.announcer import Announcer
from elastic_c10d.connector import as_connector
from elastic_c10d.keys import Keys, create, peek
from elastic_c10d.line import Line
from elastic_c10d.roster_log import RosterLog
from elastic_c10d.versions import Version, Versions
from elastic_core.clock import SystemClock
from elastic_core.interfaces.backend import RosterBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_c10d.connector import Connector
    from elastic_c10d.torch_store import Store
    from elastic_core.clock import Clock, Duration
    from elastic_core.interfaces.backend import Announced, Token

T = TypeVar("T")
HOLE_PATIENCE: Duration = 2.0


class _Restarted(Exception):
    """A waiting line found a store that began anew."""


@dataclass
class _Life:
    """What we know of one life of the store: of the time since it was last empty."""

    name: str
    versions: Versions
    announcer: Announcer
    log: RosterLog


@dataclass(frozen=True)
class _Pushed:
    life: _Life
    number: int
    value: bytes


class C10dRendezvousBackend(RosterBackend):
    """A rendezvous backend over any torch store, or any that has its compare_set, add, check, wait and multi_get.

    It uses up to three connections, made when they are first needed: one for operations and one for each of the two
    waits. A store that was restarted empty is noticed when a connection to it is made; everything known of the one
    before is forgotten then, and what this node has announced is announced again.

    Args:
        store: a TCPStore, FileStore or HashStore, possibly beneath PrefixStores, which stays the caller's; or a
            `Connector`, which becomes this backend's.
        run_id: the job; jobs with different ids do not see each other in one store.
        clock: times how long a slot of the log stays unfilled.
        hole_patience: seconds after which an unfilled slot is given up.
        observes: it does not begin the life of an empty store: who only looks leaves counters at 0, no more.

    Every method but `close` raises:
        RendezvousConnectionError: the store cannot be reached. The next call tries again.
        RendezvousStateError: something else writes to our keys.
    """

    def __init__(
        self,
        store: Store | Connector,
        run_id: str,
        clock: Clock | None = None,
        hole_patience: Duration = HOLE_PATIENCE,
        observes: bool = False,
    ) -> None:
        self._keys = Keys(run_id)
        self._clock = clock or SystemClock()
        self._hole_patience = hole_patience
        self._observes = observes
        self._connector: Connector = as_connector(store)
        self._life: _Life | None = None
        self._pushed: _Pushed | None = None
        self._main = Line(self._connector, aside=False, greet=self._greet)
        self._state_line = Line(self._connector, aside=True, greet=self._greet_aside)
        self._roster_line = Line(self._connector, aside=True, greet=self._greet_aside)

    @property
    def name(self) -> str:
        return "c10d"

    @property
    def hosts_store(self) -> bool:
        return self._connector.hosts

    def connect(self) -> None:
        """Connect now rather than at the first use. Takes as long as the connector's patience at most, and comes back
        with an error soon after `close`."""
        self._use("connecting", lambda store, life: None)

    def get_state(self) -> tuple[bytes, Version] | None:
        pushed, self._pushed = self._pushed, None

        def read(store: Store, life: _Life) -> tuple[bytes, Version] | None:
            if pushed is not None and pushed.life is life and life.versions.adopt(pushed.number, pushed.value):
                return life.versions.standing()
            return life.versions.newest(store)

        return self._use("reading the state", read)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Version, bool] | None:
        def write(store: Store, life: _Life) -> tuple[bytes, Version, bool] | None:
            if token is None or token.life == life.name:
                return life.versions.write(store, state, 0 if token is None else token.number)
            standing = life.versions.newest(store)
            return None if standing is None else (*standing, False)

        return self._use("writing the state", write)

    def announce(self, key: str, entry: bytes) -> int:
        def write(store: Store, life: _Life) -> int:
            first = life.announcer.announce(store, key, entry)
            return max(0, first - life.log.base(store))

        return self._use("announcing this node", write)

    def withdraw(self, key: str) -> None:
        def write(store: Store, life: _Life) -> None:
            life.announcer.withdraw(store, key, life.log.first_slot(key))

        self._use("withdrawing a node", write)

    def beat(self, key: str, leading: bool, look: bool) -> int | None:
        def write(store: Store, life: _Life) -> int | None:
            life.announcer.beat(store, key)
            return store.add(self._keys.lead, int(leading)) if leading or look else None

        return self._use("beating", write)

    def roster(self) -> tuple[Announced, ...]:
        return self._use("reading the roster", lambda store, life: life.log.read(store))

    def wait_for_state(self, token: Token | None, timeout: Duration) -> bool:
        life = self._life
        if token is not None and life is not None and token.life != life.name:
            return True
        number = 1 if token is None else token.number + 1
        try:
            value = self._state_line.fetch(self._keys.state(number), timeout)
        except _Restarted:
            return True
        if value is not None and life is not None:
            self._pushed = _Pushed(life, number, value)  # what was waited for came with the news
        return value is not None

    def wait_for_roster(self, timeout: Duration, more: int = 1) -> bool:
        log = self._life.log if self._life is not None else None
        if log is not None and log.behind:  # the next look fills the hole; until then there is nothing else to see
            return self._wait(
                self._roster_line, self._keys.slot(log.cursor + 1), min(timeout, self._hole_patience)
            ) or (timeout >= self._hole_patience)
        return self._wait(self._roster_line, self._keys.slot((log.cursor if log else 0) + more), timeout)

    def close(self) -> None:
        """Every blocked call comes back at once: waits with False, others with RendezvousConnectionError. Where torch
        does not show its sockets, waits need 1 s, and others as long as they need."""
        self._connector.close()
        for line in (self._main, self._state_line, self._roster_line):
            line.close()

    def _use(self, doing: str, operation: Callable[[Store, _Life], T]) -> T:
        def with_life(store: Store) -> T:
            assert self._life is not None  # `_greet` came first
            return operation(store, self._life)

        return self._main.use(doing, with_life)

    def _wait(self, line: Line, key: str, timeout: Duration) -> bool:
        try:
            return line.wait_for(key, timeout)
        except _Restarted:
            return True

    def _greet(self, store: Store) -> None:
        name = self._name_of_life(store)
        if self._life is None or self._life.name != name:
            log = RosterLog(self._keys, self._clock, self._hole_patience)
            announcer = Announcer(self._keys)
            if self._life is not None:
                self._life.announcer.move_to(announcer, store)
            self._life = _Life(name, Versions(self._keys, name), announcer, log)

    def _name_of_life(self, store: Store) -> str:
        if self._observes:
            return (peek(store, self._keys.id) or b"").decode()
        return create(store, self._keys.id, secrets.token_hex(8).encode()).decode()

    def _greet_aside(self, store: Store) -> None:
        name = peek(store, self._keys.id)  # two operations; but in a store that began anew there is none to get
        if self._life is not None and (name is None or name.decode() != self._life.name):
            raise _Restarted
