"""The driver, which performs the operations that a node requests and returns their outcomes. The node makes all
decisions. `design/rendezvous.md` describes the driver's three threads and its locks."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from operator import is_not
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.clock import Backoff, Instant, later
from elastic_core.errors import RendezvousError, RendezvousStateError
from elastic_core.interfaces.backend import ForeignStateError
from elastic_core.log import get_logger, tolerating
from elastic_core.rendezvous.codec import decoded_entry, decoded_state, encoded_entry, encoded_state
from elastic_core.rendezvous.effects import (
    Announce,
    HandOver,
    Heartbeat,
    Idle,
    ReadRoster,
    ReadState,
    Withdraw,
    WriteState,
)
from elastic_core.rendezvous.model import NOBODY
from elastic_core.rendezvous.roster import Registration
from elastic_core.support.bounded import BackgroundCall, CallTimeout
from elastic_core.support.processes import drop_in_forks

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration
    from elastic_core.interfaces.backend import RosterBackend, Token
    from elastic_core.rendezvous.effects import LogLine, Operation, Request
    from elastic_core.rendezvous.model import Entry, State
    from elastic_core.rendezvous.node import Node

T = TypeVar("T")
_LONGEST_WAIT: Duration = 30.0  # limits each wait for a change, so that a watcher notices a lost connection
_AFTER_ERROR: Duration = 1.0
_MANY = 20
_BREATH: Duration = 0.1  # seconds for each thread to end even after the deadline, in case the process was suspended
_STATE, _ROSTER = "state", "roster"


@dataclass(frozen=True)
class Patience:
    """Time limits for each kind of wait, in seconds."""

    answer: Duration = 5.0  # for an answer from the store, when a caller closes the job or leaves
    outage: Duration = 1.0  # for the same answer during an outage
    handover: Duration = 3.0  # for another node to take over the store, and as long again for all nodes to follow
    linger: Duration = 5.0  # for all nodes to learn that the job is over, in the process that hosts the store
    closing: Duration = 10.0  # for the backend to close, which may have to stop a server
    ending: Duration = 2.0  # for the threads to end
    pauses: Backoff = Backoff(first=0.01, longest=_AFTER_ERROR)  # pauses after notifications that brought nothing new


class Driver:
    """Performs one node's operations on the backend, in background threads. Any thread may call the methods. `start`
    and `stop` may be called any number of times. The driver owns the backend and closes it."""

    def __init__(self, node: Node, backend: RosterBackend, clock: Clock, patience: Patience = Patience()) -> None:
        self._node = node
        self._backend = backend
        self._clock = clock
        self._patience = patience
        self._operations = Operations(backend)
        self._changed, self._due, self._rested = _conditions()
        self._listeners: list[Callable[[], None]] = []
        self._outcomes: dict[int, list[Exception | None]] = {}  # for requests that callers await; empty until settled
        self._threads: dict[str, threading.Thread] = {}
        self._stopping = False
        self._woken = False  # whether the node has changed since it was last asked for a step
        self._resting = False
        self._rests_until = Instant(0.0)
        self._working = threading.Lock()  # held by the thread that performs operations; acquired before the other lock
        self._logged: set[type[Exception]] = set()
        self._dropped = False
        drop_in_forks(self)

    # -- calls from the handler

    @property
    def started(self) -> bool:
        return bool(self._threads)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call the listener in one of the driver's threads whenever the state, the outage or the fault changes."""
        self._listeners.append(listener)

    def start(self) -> None:
        with self._changed:
            self._start_thread("node", self._operate)

    def ask(self, question: Callable[[Node, Instant], T]) -> T:
        """Call `question` with the node and the current time, and return the result. Never waits for the store."""
        with self._changed:
            found = question(self._node, self._clock.now())
            notes = self._node.pop_log_lines()
        _log(notes)
        return found

    def tell(self, order: Callable[[Node], T]) -> T:
        """Call `order` with the node, and return the result. The driver then acts on the change in the background."""
        with self._changed:
            given = order(self._node)
            self._changed.notify_all()
            self._wake()
            return given

    def carry_out(
        self, order: Callable[[Node], Request], timeout: Duration, given_up: Callable[[], bool] = lambda: False
    ) -> bool:
        """Make a request to the node, and wait up to `timeout` seconds for the outcome. The wait also ends if
        `given_up` returns True; it is called after every change. Returns whether the request was carried out in time.
        Raises the node's error if the request cannot be carried out."""
        with self._changed:
            request = self.tell(order)
            outcome = self._outcomes[id(request)] = []
            self._changed.wait_for(lambda: outcome or self._stopping or given_up(), timeout)
            del self._outcomes[id(request)]
        if outcome and outcome[0] is not None:
            raise outcome[0]
        return bool(outcome)

    def wait(self, found: Callable[[Node, Instant], T | None], until: Callable[[Node], Instant | None]) -> T | None:
        """Call `found` after every change until it returns a result, and return that result. Returns None at the time
        that `until` returns. If `until` returns None, there is no time limit."""
        with self._changed:
            while True:
                now = self._clock.now()
                what, deadline = found(self._node, now), until(self._node)
                if what is not None or (deadline is not None and now >= deadline):
                    return what
                left = _LONGEST_WAIT if deadline is None else deadline - now
                self._changed.wait(min(left, _LONGEST_WAIT))

    def stop(self) -> bool:
        """Close the backend and end the threads. Returns False if a store call still hangs. Raises any error from
        closing the backend."""
        with self._changed:
            self._stopping = True
            threads = list(self._threads.values())
            for condition in (self._changed, self._due, self._rested):
                condition.notify_all()
        closed = self._dropped or self._closed()
        until = later(self._clock.now(), self._patience.ending)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(until - self._clock.now(), _BREATH))
        return closed and not any(thread.is_alive() for thread in threads)

    def drop(self) -> None:
        """Abandon the threads in a forked child, and replace the lock, which one of them may have held during the
        fork."""
        (self._changed, self._due, self._rested), self._threads = _conditions(), {}
        self._working = threading.Lock()
        self._stopping = self._dropped = True

    def _closed(self) -> bool:
        try:
            call = BackgroundCall(self._backend.close)
        except RuntimeError:  # no thread can be started
            self._backend.close()
            return True
        try:
            call.result(self._patience.closing)
        except CallTimeout:
            reason = f"the backend did not close within {self._patience.closing:g} s"
            get_logger().warning("rendezvous fault", reason=reason)
            return False
        return True

    # -- threads

    def _start_thread(self, name: str, target: Callable[[], None]) -> None:
        """Start the thread unless it has already been started. Raises RuntimeError if the thread cannot be started."""
        if name not in self._threads and not self._stopping:
            thread = threading.Thread(target=target, name=f"rendezvous-{name}", daemon=True)
            thread.start()
            self._threads[name] = thread

    # -- operating

    def _operate(self) -> None:
        while not self._stopping:
            self._work()
            with self._changed:
                while not (self._woken or self._stopping) and (left := self._rests_until - self._clock.now()) > 0:
                    self._due.wait(min(left, _LONGEST_WAIT))

    def _work(self) -> None:
        """Perform operations until the node rests. A thread that learns of a change calls this method itself. To wake
        another thread would take longer, in particular if workers keep all cores busy."""
        outcome: Callable[[Instant], object] | None = None
        with self._working:
            while not self._stopping:
                try:
                    known, outcome = outcome, None
                    step = self._advance(known)
                    if isinstance(step, Idle):
                        self._rest(step)
                        return
                    outcome = self._performed(step)
                except Exception as error:  # noqa: BLE001 - without heartbeats this node would be considered lost
                    self._log_once(error)
                    with self._changed:
                        for kind in (_STATE, _ROSTER):  # it may be impossible to start a watcher thread
                            self._note_news(kind)
                        self._due.wait_for(lambda: self._woken or self._stopping, self._patience.pauses.pause(_MANY))

    def _performed(self, operation: Operation) -> Callable[[Instant], object]:
        """Perform the operation without holding the lock. Returns a function that passes the outcome to the node."""
        try:
            return partial(self._node.answered, self._operations.perform(operation))
        except Exception as error:  # noqa: BLE001 - the node decides what a fault of one operation means
            return partial(self._node.broke, error)

    def _advance(self, outcome: Callable[[Instant], object] | None) -> Operation | Idle:
        """Pass the last outcome to the node, ask the node for the next step, and wake the threads that wait for a
        change."""
        node = self._node
        with self._changed:
            before, now = self._shown(), self._clock.now()
            if outcome is not None:
                outcome(now)
            self._woken = self._resting = False
            step = node.next(now, self._backend.vacant)
            notes, settled = node.pop_log_lines(), node.pop_settled()
            for request, fault in settled:
                self._outcomes.get(id(request), []).append(fault)
            changed = any(map(is_not, self._shown(), before))
            if changed or settled:
                self._changed.notify_all()
        _log(notes)
        if changed:
            self._notify()
        return step

    def _shown(self) -> tuple[object, ...]:
        """Return the values whose changes matter to callers and listeners."""
        return self._node.state, self._node.connection.outage, self._node.fault, self._node.lingers

    def _notify(self) -> None:
        for listener in self._listeners:
            with tolerating("rendezvous fault", "a listener"):
                listener()

    # -- resting, and waiting for news

    def _rest(self, rest: Idle) -> None:
        with self._changed:
            if self._node.wants_roster:
                self._start_thread(_ROSTER, lambda: self._watch(_ROSTER))
            if self._node.registered is not None:
                self._start_thread(_STATE, lambda: self._watch(_STATE))
            self._resting = True
            self._rested.notify_all()
            if rest.until < self._rests_until:
                self._due.notify_all()
            self._rests_until = rest.until

    def _wake(self) -> None:
        """Wake the thread that waits until something is due. The caller must hold the lock."""
        self._woken = True
        self._due.notify_all()

    def _watch(self, kind: str) -> None:
        useless = 0
        while not self._stopping:
            try:
                useless = useless + 1 if self._wait_for_news(kind) else 0
                pauses = useless
            except Exception as error:  # noqa: BLE001 - without its watchers the node would miss changes
                if not isinstance(error, RendezvousError) and not self._stopping:
                    self._log_once(error)
                pauses = _MANY
            if pauses:  # otherwise, this thread would keep asking the backend and the node
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, self._patience.pauses.pause(pauses))

    def _wait_for_news(self, kind: str) -> bool:
        """Wait for a change in the store, and let the node process it. Returns True if the node failed to do so."""
        with self._changed:
            if kind == _ROSTER:  # each read of the roster affects which change to wait for
                self._rested.wait_for(lambda: self._stopping or self._awaits_roster())
            before, token, lacking = self._known(kind), self._node.token, self._node.lacking
        if kind == _STATE:
            news = self._backend.wait_for_state(token, _LONGEST_WAIT)
        else:
            news = self._backend.wait_for_roster(_LONGEST_WAIT, lacking)
        if not news:
            return False
        with self._changed:
            self._note_news(kind)
            self._woken = True
        self._work()
        return self._known(kind) == before

    def _awaits_roster(self) -> bool:
        return self._resting and not self._woken and self._node.wants_roster

    def _note_news(self, kind: str) -> None:
        with self._changed:
            (self._node.state_changed if kind == _STATE else self._node.roster_changed)()

    def _known(self, kind: str) -> object:
        """Return a value that differs after each change that the node has processed."""
        return self._node.token if kind == _STATE else self._node.seen.roster

    def _log_once(self, error: Exception) -> None:
        with self._changed:
            known = type(error) in self._logged
            self._logged.add(type(error))
        if not known:
            get_logger().warning("rendezvous fault", reason=f"{type(error).__name__}: {error}", exc_info=error)


class Operations:
    """Performs a node's operations on a backend. Only one thread at a time may use an instance."""

    def __init__(self, backend: RosterBackend) -> None:
        self._backend = backend
        self._entries: dict[tuple[str, bytes], Entry | None] = {}
        self._seats = NOBODY

    def perform(self, operation: Operation) -> Any:
        """Perform the operation and return its result, as described in `effects`. Raises the backend's errors."""
        try:
            if isinstance(operation, ReadState):
                return self._state_of(self._backend.get_state())
            if isinstance(operation, WriteState):
                return self._written(operation)
        except ForeignStateError as error:
            return (error, error.token) if isinstance(operation, ReadState) else (error, error.token, False)
        if isinstance(operation, ReadRoster):
            return self._roster()
        if isinstance(operation, Announce):
            return self._backend.announce(operation.entry.key, encoded_entry(operation.entry))
        if isinstance(operation, Withdraw):
            return self._backend.withdraw(operation.key)
        if isinstance(operation, HandOver):
            return self._backend.hand_over(operation.heirs, operation.timeout)
        assert isinstance(operation, Heartbeat)
        return self._backend.beat(operation.key, operation.leading, operation.look)

    def _written(self, operation: WriteState) -> Any:
        found = self._backend.set_state(encoded_state(operation.state), operation.token)
        if found is None or found[2]:
            return found and (operation.state, found[1], True)
        return (*self._state_of(found[:2]), False)

    def _state_of(self, found: tuple[bytes, Token] | None) -> tuple[State | None, Token | None]:
        if found is None:
            return None, None
        try:
            state = decoded_state(found[0], self._seats)
        except RendezvousStateError as error:
            raise ForeignStateError(str(error), found[1]) from error
        self._seats = state.seats
        return state, found[1]

    def _roster(self) -> tuple[Registration, ...]:
        found = self._backend.roster()
        self._entries = {(item.key, item.entry): self._decoded(item.key, item.entry) for item in found}
        return tuple(Registration(item.key, self._entries[item.key, item.entry], item.beats) for item in found)

    def _decoded(self, key: str, data: bytes) -> Entry | None:
        """Return the entry, or None if it is unreadable. An unreadable entry excludes only its own node."""
        if (key, data) in self._entries:
            return self._entries[key, data]
        try:
            return decoded_entry(data, key)
        except RendezvousStateError as error:
            get_logger().warning("entry unreadable", node=key, reason=str(error))
            return None


def _conditions() -> tuple[threading.Condition, threading.Condition, threading.Condition]:
    """Return three conditions that share a lock. They signal that something has changed, that there is work to do, and
    that the node rests. The conditions are separate so that a heartbeat does not wake any callers."""
    lock = threading.RLock()
    return threading.Condition(lock), threading.Condition(lock), threading.Condition(lock)


def _log(notes: tuple[LogLine, ...]) -> None:
    for note in notes:
        trace = {"exc_info": note.trace} if note.trace else {}
        getattr(get_logger(), note.level)(note.event, **note.fields, **trace)
