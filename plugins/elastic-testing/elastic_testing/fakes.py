"""Fakes: a clock that the test advances, an agent as seen by a health endpoint, and an in-memory rendezvous backend
that a test can make unreachable or make lose replies."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import (
    AgentPhase,
    AgentStatus,
    Announced,
    CheckStatus,
    EntryDroppedError,
    Instant,
    Member,
    RendezvousBackend,
    RendezvousConnectionError,
    RosterBackend,
    SystemClock,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.plugin import Duration, Token


class FakeClock:
    """See `clock.Clock`. The clock starts at instant 0. `epoch` is the timestamp at that instant, in seconds since 1970
    (default: 1,700,000,000)."""

    def __init__(self, epoch: float = 1_700_000_000.0) -> None:
        self._epoch = epoch
        self._elapsed: Duration = 0.0

    def now(self) -> Instant:
        return Instant(self._elapsed)

    def timestamp(self) -> float:
        return self._epoch + self._elapsed

    def advance(self, seconds: Duration) -> Instant:
        """Advance the clock, and return the new instant. Raises ValueError if `seconds` is negative, because a
        monotonic clock never goes backward."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-seconds} s")
        self._elapsed += seconds
        return self.now()


class FakeAgentView:
    """See `interfaces.health.AgentView`. Thread-safe. By default, it shows the agent of a single-node job whose
    workers are running.

    Attributes:
        stuck_for: seconds since the last iteration of the agent's loop (0).
        fault: the watchdog's fault; empty if there is none (default).
        template: the result of `template_pid` (None).
        refused: the result of `not_signed` (0).
        checked: the result of `checks` (empty).
    """

    def __init__(self, status: AgentStatus | None = None) -> None:
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._subscribers: list[Callable[[], None]] = []
        own = Member("node0", "host0", "10.0.0.0", "trainer", 1)
        since = self._clock.timestamp()
        self._status = status or AgentStatus(
            1, "job", own.node, own.role, AgentPhase.RUNNING, since, round=1, group_rank=0, members=(own,)
        )
        self.stuck_for = 0.0
        self.fault = ""
        self.template: int | None = None
        self.checked: tuple[CheckStatus, ...] = ()

    @property
    def subscribers(self) -> int:
        """Number of subscribers."""
        return len(self._subscribers)

    def show(self, **changes: Any) -> None:
        """Change these fields of the status, and notify the subscribers."""
        with self._lock:
            self._status = replace(self._status, version=self._status.version + 1, **changes)
            subscribers = list(self._subscribers)
        for changed in subscribers:
            changed()

    def alive_at(self) -> float:
        return self._clock.timestamp() - self.stuck_for

    def watchdog_fault(self) -> str:
        return self.fault

    def template_pid(self) -> int | None:
        return self.template

    def not_signed(self) -> int:
        return 0

    def checks(self) -> tuple[CheckStatus, ...]:
        return self.checked

    def status(self) -> AgentStatus:
        return self._status

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._subscribers.append(changed)
        return lambda: self._forget(changed)

    def _forget(self, changed: Callable[[], None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._subscribers.remove(changed)


@dataclass
class SharedMemory:
    """The data shared by the backends of all nodes of a job.

    Attributes:
        state: the state and the sequence number of its last write, or None before the first write.
        entries: the nodes' entries, oldest first.
        lead: how many heartbeats leaders have sent.
        rosters: a counter that is incremented whenever an entry is added, removed or changed.
        vacant: what `RosterBackend.vacant` returns.
        leases: whether to simulate a store that drops the entries of failed nodes. The test calls `drop` to drop an
            entry, and the node finds out at its next heartbeat. Such a store does not expose heartbeat counters.
        changed: a condition that is notified of every change.
    """

    state: tuple[bytes, int] | None = None
    entries: dict[str, Announced] = field(default_factory=dict)
    lead: int = 0
    rosters: int = 0
    vacant: bool = False
    leases: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)
    _lost_writes: int = 0

    @property
    def writes(self) -> int:
        """How often the state was written or lost."""
        return self._lost_writes if self.state is None else self.state[1]

    @property
    def token(self) -> int | None:
        """The token of the last write; None if there is no state."""
        return None if self.state is None else self.state[1]

    def drop(self, key: str) -> None:
        """Drop an entry, as a store does when a lease expires."""
        with self.changed:
            if self.entries.pop(key, None):
                self.rosters += 1
                self.changed.notify_all()

    def forget(self) -> None:
        """Lose all data, as a store does when it restarts."""
        with self.changed:
            self._lost_writes = self.writes + 1
            self.state, self.lead = None, 0
            self.entries.clear()
            self.rosters += 1
            self.changed.notify_all()


class MemoryBackend(RosterBackend):
    """One node's connection to `memory`. See `interfaces.backend.RosterBackend`.

    Attributes:
        reachable: if false, every call raises RendezvousConnectionError without any effect (true).
        lose_answers: how many of the next modifying calls take effect but still raise RendezvousConnectionError (0).
        calls: number of calls to each method, by name.
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
            self._memory.rosters += 1
            self._memory.changed.notify_all()
            place = list(self._memory.entries).index(key)
        self._answer()
        return place

    def withdraw(self, key: str) -> None:
        self._called("withdraw")
        self._memory.drop(key)
        self._answer()

    def beat(self, key: str, leading: bool, look: bool) -> int | None:
        self._called("beat")
        with self._memory.changed:
            entry = self._memory.entries.get(key)
            if entry is None:
                raise EntryDroppedError("the entry of this node was dropped")
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

    def _called(self, method: str) -> None:
        self.calls[method] += 1
        if self._closed:
            raise RendezvousConnectionError("the connection was closed")
        if not self.reachable:
            raise RendezvousConnectionError("the test made the store unreachable")

    def _answer(self) -> None:
        if self.lose_answers:
            self.lose_answers -= 1
            raise RendezvousConnectionError("the test dropped the reply")


class StateOnlyBackend(RendezvousBackend):
    """An in-memory backend with only the two required methods. All nodes share one object. `before_write` is called
    before each write, so that a test can let another writer go first. `writes` counts all attempts to write."""

    def __init__(self, before_write: Callable[[], object] = lambda: None) -> None:
        self._whole = MemoryBackend(SharedMemory())
        self._before_write = before_write

    @property
    def name(self) -> str:
        return "toy"

    @property
    def writes(self) -> int:
        return self._whole.calls["set_state"]

    def get_state(self) -> tuple[bytes, Token] | None:
        return self._whole.get_state()

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        self._before_write()
        return self._whole.set_state(state, token)
