"""A handler of rounds that follows a script and keeps what it is told, for tests of the agent and of what uses it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from elastic_core.builtin.memory_store import MemoryStore
from elastic_core.interfaces.handler import Outcome, RendezvousInfo, RendezvousStoreInfo, RoundHandler
from elastic_core.interfaces.node import Member, Round

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from elastic_core.clock import Duration, Instant
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.handler import Verdict

    Step = RendezvousInfo | BaseException | Callable[[], RendezvousInfo | None]

_FIRST_PORT = 29_000


def round_info(
    number: int = 1,
    members: Sequence[tuple[str, int]] = (("default", 1),),
    rank: int = 0,
    restart_count: int = 0,
    reason: str = "",
) -> RendezvousInfo:
    """A round as a handler hands it out. `members` are pairs of role and local world size in the order of group ranks;
    their nodes are called node0, node1, ..."""
    seats = tuple(Member(f"node{i}", f"host{i}", f"10.0.0.{i}", role, size) for i, (role, size) in enumerate(members))
    where = RendezvousStoreInfo("10.0.0.0", _FIRST_PORT + number)
    return RendezvousInfo(MemoryStore(), rank, len(seats), where, Round(number, seats, restart_count, reason))


class FakeRounds(RoundHandler):
    """See `interfaces.handler.RoundHandler`.

    Args:
        rounds: one step for each call of `next_rendezvous`: what it returns or raises, or a function that is called
            first (it may block, and raise) and whose round is returned. None from it, and no step left: the round
            before once more under the next number, and a round of one worker at the beginning.
        on_failure, on_success: called with this object when that is reported; the place to give verdicts.
        can_tell: what `leave` answers.

    Attributes:
        calls: what was called, in order: the method's name and its arguments.
        deadline: what `ask_again` answers.
        missing: what `progress` answers.
        hosts_store: whether this node has the store of the others.
        released: set by `shutdown`; functions that block wait for it.
    """

    hosts_store = False

    def __init__(
        self,
        rounds: Iterable[Step] = (),
        on_failure: Callable[[FakeRounds], None] | None = None,
        on_success: Callable[[FakeRounds], None] | None = None,
        can_tell: bool = True,
    ) -> None:
        self._steps = list(rounds)
        self._on_failure = on_failure
        self._on_success = on_success
        self._can_tell = can_tell
        self._listeners: list[Callable[[], None]] = []
        self._verdict: Verdict | None = None
        self._last: RendezvousInfo | None = None
        self.calls: list[tuple[Any, ...]] = []
        self.deadline: Instant | None = None
        self.missing = ""
        self.released = threading.Event()

    def give(self, verdict: Verdict) -> None:
        """The round has come to this, and whoever listens is told. Any thread."""
        self._verdict = verdict
        for listener in self._listeners:
            listener()

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of the calls of this method."""
        return [call[1:] for call in self.calls if call[0] == name]

    def get_backend(self) -> str:
        return "fake"

    def get_run_id(self) -> str:
        return "job"

    def next_rendezvous(self) -> RendezvousInfo:
        self.calls.append(("next_rendezvous",))
        step = self._steps.pop(0) if self._steps else None
        if isinstance(step, BaseException):
            raise step
        info = step() if callable(step) else step
        self._last = info or self._next()
        self._verdict = None
        return self._last

    def is_closed(self) -> bool:
        return self._verdict is not None and self._verdict.outcome is Outcome.CLOSED

    def set_closed(self) -> None:
        self.calls.append(("set_closed",))

    def num_nodes_waiting(self) -> int:
        self.calls.append(("num_nodes_waiting",))
        return 0

    def shutdown(self) -> bool:
        self.released.set()
        return True

    def subscribe(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def verdict(self) -> Verdict | None:
        return self._verdict

    def ask_again(self) -> Instant | None:
        return self.deadline

    def report_failure(self, failures: Mapping[int, ProcessFailure]) -> None:
        self.calls.append(("report_failure", dict(failures)))
        if self._on_failure:
            self._on_failure(self)

    def report_success(self) -> None:
        self.calls.append(("report_success",))
        if self._on_success:
            self._on_success(self)

    def leave(self, reason: str, timeout: Duration) -> bool:
        self.calls.append(("leave", reason, timeout))
        return self._can_tell

    def progress(self) -> str:
        return self.missing

    def _next(self) -> RendezvousInfo:
        if self._last is None or self._last.formed is None:
            return round_info()
        formed = self._last.formed
        members = [(member.role, member.local_world_size) for member in formed.members]
        return round_info(formed.number + 1, members, self._last.rank, formed.restart_count)
