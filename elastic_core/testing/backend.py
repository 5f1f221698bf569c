"""A rendezvous backend in memory, whose store can be out of reach, slow to answer, or lose answers on purpose."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastic_core.errors import RendezvousConnectionError
from elastic_core.interfaces.backend import Announced, EntryDroppedError, RosterBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration
    from elastic_core.interfaces.backend import Token


@dataclass
class SharedMemory:
    """What the backends of all nodes of a job have in common.

    Attributes:
        state: the state and the number of its last write; None before the first.
        entries: oldest first.
        lead: the leaders' counter.
        rosters: grows with everybody who comes, goes, or announces something new.
        on_write: called with the state before (None for none) and the new one, for every write that is accepted.
        forgotten: how often it lost its memory.
        vacant: what `RosterBackend.vacant` says.
        leases: whether it is one that drops the entries of nodes that are gone (a test does): it shows no beats, and a
            node learns with its next one that its entry was dropped.
        changed: notified with every change.
    """

    state: tuple[bytes, int] | None = None
    entries: dict[str, Announced] = field(default_factory=dict)
    lead: int = 0
    rosters: int = 0
    on_write: Callable[[bytes | None, bytes], None] | None = None
    forgotten: int = 0
    vacant: bool = False
    leases: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)
    _lost_writes: int = 0

    @property
    def writes(self) -> int:
        """How often the state was written, or forgotten."""
        return self._lost_writes if self.state is None else self.state[1]

    @property
    def token(self) -> int | None:
        """Of the last write; None when there is none to be seen."""
        return None if self.state is None else self.state[1]

    def drop(self, key: str) -> None:
        """Drop an entry, as a store does whose lease has ended."""
        with self.changed:
            if self.entries.pop(key, None):
                self.rosters += 1
                self.changed.notify_all()

    def forget(self) -> None:
        """Lose everything, as a store whose host was started anew."""
        with self.changed:
            self._lost_writes = self.writes + 1
            self.state, self.lead = None, 0
            self.entries.clear()
            self.forgotten += 1
            self.rosters += 1
            self.changed.notify_all()


class MemoryBackend(RosterBackend):
    """See `interfaces.backend.RosterBackend`: one node's connection to `memory`.

    Attributes:
        reachable: while false, every call raises RendezvousConnectionError and does nothing.
        lose_answers: so many of the next calls that change something do it, and raise then.
        calls: how often each method was called, by name.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._closed = False
        self._seen_rosters = 0
        self.reachable = True
        self.lose_answers = 0
        self.calls: Counter[str] = Counter()

    @property
    def name(self) -> str:
        return "memory"

    def get_state(self) -> tuple[bytes, Token] | None:
        self._called("get_state")
        return self._memory.state

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        self._called("set_state")
        memory = self._memory
        with memory.changed:
            written = memory.token == token
            if written:
                if memory.on_write:
                    memory.on_write(memory.state[0] if memory.state else None, state)
                memory.state = (state, memory.writes + 1)
                memory.changed.notify_all()
            found = memory.state
        self._answer()
        return None if found is None else (*found, written)

    def announce(self, key: str, entry: bytes) -> int:
        self._called("announce")
        with self._memory.changed:
            before = self._memory.entries.get(key)
            self._memory.entries[key] = Announced(key, entry, (before.beats or 0) + 1 if before else 0)
            self._roster_changed()
            place = list(self._memory.entries).index(key)
        self._answer()
        return place

    def withdraw(self, key: str) -> None:
        self._called("withdraw")
        with self._memory.changed:
            if self._memory.entries.pop(key, None):
                self._roster_changed()
        self._answer()

    def beat(self, key: str, leading: bool, look: bool) -> int | None:
        self._called("beat")
        with self._memory.changed:
            entry = self._memory.entries.get(key)
            if entry is None:
                raise EntryDroppedError("expected the entry of this node, found that it was dropped")
            self._memory.entries[key] = replace(entry, beats=(entry.beats or 0) + 1)
            self._memory.lead += leading
            lead = self._memory.lead
        self._answer()
        return lead if leading or look else None

    def roster(self) -> tuple[Announced, ...]:
        self._called("roster")
        with self._memory.changed:
            self._seen_rosters = self._memory.rosters
            found = tuple(self._memory.entries.values())
        return tuple(replace(item, beats=None) for item in found) if self._memory.leases else found

    def wait_for_state(self, token: Token | None, timeout: Duration) -> bool:
        return self._wait(lambda: self._memory.token != token, timeout)

    def wait_for_roster(self, timeout: Duration, more: int = 1) -> bool:
        return self._wait(lambda: self._memory.rosters >= self._seen_rosters + more, timeout)

    @property
    def vacant(self) -> bool:
        return self._memory.vacant

    def close(self) -> None:
        with self._memory.changed:
            self._closed = True
            self._memory.changed.notify_all()

    def _wait(self, changed: Callable[[], bool], timeout: Duration) -> bool:
        with self._memory.changed:
            self._memory.changed.wait_for(lambda: self._closed or (self.reachable and changed()), timeout)
            return not self._closed and self.reachable and changed()

    def _roster_changed(self) -> None:
        self._memory.rosters += 1
        self._memory.changed.notify_all()

    def _called(self, method: str) -> None:
        self.calls[method] += 1
        if not self.reachable:
            raise RendezvousConnectionError("expected the memory to be in reach, found that a test took it away")

    def _answer(self) -> None:
        if self.lose_answers:
            self.lose_answers -= 1
            raise RendezvousConnectionError("expected an answer, found that a test lost it")
