"""The driver performs what a node asks for and gives it the answers. It is the only part of the rendezvous with threads
and I/O, and it decides nothing.

It has three threads at most, each started when it is first needed. One operates: it asks the node what comes next,
performs that, and rests. One waits for the state. If the node leads, one waits for the roster. While nodes gather, the
operating thread itself waits in the store, so that a join costs one thread and no handing over. If something is asked
of the node meanwhile, another thread takes over operating at once, and the first goes on waiting.

The node is used under one lock, which is never held while the store is asked. So a caller that asks the node gets an
answer at once, even while the store hangs.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from operator import is_not
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.clock import later
from elastic_core.errors import RendezvousError, RendezvousStateError
from elastic_core.interfaces.backend import SpoiltStateError
from elastic_core.log import get_logger
from elastic_core.rendezvous.codec import decoded_entry, decoded_state, encoded_entry, encoded_state
from elastic_core.rendezvous.effects import (
    Announce,
    Beat,
    HandOver,
    ReadRoster,
    ReadState,
    Registration,
    Rest,
    Unreadable,
    Withdraw,
    WriteState,
)
from elastic_core.rendezvous.seats import NOBODY
from elastic_core.support.bounded import Call, Late
from elastic_core.support.forks import drop_in_forks
from elastic_core.support.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.backend import RosterBackend, Token
    from elastic_core.rendezvous.effects import Note, Operation, Request
    from elastic_core.rendezvous.model import Entry, State
    from elastic_core.rendezvous.node import Node

T = TypeVar("T")
_LONGEST_WAIT: Duration = 30.0  # a bound for waits for news, so that a lost connection is noticed
_AFTER_ERROR: Duration = 1.0  # a watcher whose connection fails leaves it to the operations to find out why
_NOTHING = object()
_MANY = 20
_BREATH: Duration = 0.1  # for each that ends, also when time has run out: this process may have slept, and they with it
_SETTLING: Duration = 0.001  # for each node of a round that has just formed: their agents all have to do at once
_STATE, _ROSTER = "state", "roster"


@dataclass(frozen=True)
class Patience:
    """How many seconds are waited, at most, for what may never come, and between waits that bring nothing."""

    answer: Duration = 5.0  # an answer of the store, by who closes or leaves
    outage: Duration = 1.0  # the same, when the store has not answered before
    handover: Duration = 3.0  # by the host of the store, for another node to take it over; once more for all to follow
    linger: Duration = 5.0  # by the host of the store, for the others to have seen that the job is over
    closing: Duration = 10.0  # for the backend to close; a server that it hosts takes its time
    ending: Duration = 2.0  # for the threads to end
    pauses: Backoff = Backoff(first=0.01, longest=_AFTER_ERROR)  # after news that brought nothing new


class _Pending:
    """What a caller waits for. `done` once it was carried out, or `fault` once it never can be."""

    def __init__(self) -> None:
        self.done = False
        self.fault: Exception | None = None


class Driver:
    """See above. All methods may be called from any thread; `start` and `stop` any number of times.

    Args:
        backend: becomes this driver's, which closes it.
    """

    def __init__(self, node: Node, backend: RosterBackend, clock: Clock, patience: Patience = Patience()) -> None:
        self._node = node
        self._backend = backend
        self._clock = clock
        self._patience = patience
        self._operations = Operations(backend)
        self._changed, self._rested = _conditions()
        self._listeners: list[Callable[[], None]] = []
        self._pending: dict[int, _Pending] = {}
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self._operator = object()  # the thread that holds it operates; made anew when another thread takes over
        self._in_store = False  # whether it waits there, and not for `wake`
        self._woken = False
        self._rests = 0
        self._watched: set[str] = set()
        self._settled_at: Instant | None = None
        self._useless = 0
        self._known_before: object = _NOTHING
        self._told: set[type[Exception]] = set()
        self._dropped = False
        drop_in_forks(self)

    # -- what others ask

    @property
    def started(self) -> bool:
        return bool(self._threads)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call it after every change of the state, an outage or a fault, in a thread of the driver."""
        self._listeners.append(listener)

    def start(self) -> None:
        with self._changed:
            if not self._threads and not self._stopping:
                self._take_over()

    def ask(self, question: Callable[[Node, Instant], T]) -> T:
        """What the node answers now. Returns at once, even if the store hangs."""
        with self._changed:
            found = question(self._node, self._clock.now())
            notes = self._node.take_notes()
        _log(notes)
        return found

    def tell(self, order: Callable[[Node], object]) -> None:
        """Give the node something to do, in the background."""
        with self._changed:
            order(self._node)
            self._changed.notify_all()
        self.wake()

    def carry_out(self, order: Callable[[Node], Request], timeout: Duration) -> bool:
        """The same, and wait until it is done. Returns whether it was in time. Raises what prevents it for good."""
        with self._changed:
            request, pending = order(self._node), _Pending()
            self._pending[id(request)] = pending
            self._changed.notify_all()
        self.wake()
        with self._changed:
            self._changed.wait_for(lambda: pending.done or pending.fault or self._stopping, timeout)
            del self._pending[id(request)]
        if pending.fault is not None:
            raise pending.fault
        return pending.done

    def wait(self, found: Callable[[Node, Instant], T | None], until: Callable[[Node], Instant | None]) -> T | None:
        """What `found` finds, asked after every change; None after `until` (None: never)."""
        with self._changed:
            while True:
                now = self._clock.now()
                what, deadline = found(self._node, now), until(self._node)
                if what is not None or (deadline is not None and now >= deadline):
                    return what
                left = _LONGEST_WAIT if deadline is None else deadline - now
                self._changed.wait(min(left, _LONGEST_WAIT))

    def wake(self) -> None:
        """There is something to do: wake the operating thread, wherever it sleeps, or let another one work now."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()
            if self._in_store and not self._stopping:
                try:
                    self._take_over()
                except RuntimeError as error:  # no thread can be started: the present one wakes when it is due
                    self._tell(error)

    def stop(self) -> bool:
        """Close the backend, and end the threads. A store call that hangs is left behind. Returns whether there was
        none. Raises what closing raises."""
        with self._changed:
            self._stopping = True
            threads = list(self._threads)
            self._changed.notify_all()
            self._rested.notify_all()
        closed = self._dropped or self._closed()
        until = later(self._clock.now(), self._patience.ending)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(until - self._clock.now(), _BREATH))
        return closed and not any(thread.is_alive() for thread in threads)

    def drop(self) -> None:
        """This is a forked child. The threads, the connections and the lock belong to its parent: a thread that does
        not exist here may hold the lock."""
        (self._changed, self._rested), self._threads = _conditions(), []
        self._stopping = self._dropped = True

    def _closed(self) -> bool:
        try:
            call = Call(self._backend.close)
        except RuntimeError:  # no thread can be started
            self._backend.close()
            return True
        try:
            call.result(self._patience.closing)
        except Late:
            bound = f"{self._patience.closing:g} s"
            reason = f"expected the backend to close within {bound}, found that it hangs; it is left behind"
            get_logger().warning("rendezvous fault", reason=reason)
            return False
        return True

    # -- threads

    def _take_over(self) -> None:
        """A new thread operates, and the one that did so goes on waiting."""
        before, operator = self._operator, object()
        self._operator = operator
        try:
            self._begin("node", lambda: self._operate(operator))
        except RuntimeError:  # no thread can be started
            self._operator = before
            raise
        self._in_store = False

    def _begin(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"rendezvous-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _operate(self, operator: object) -> None:
        while not self._stopping and self._operator is operator:
            try:
                self._reconcile(operator)
            except Exception as error:  # noqa: BLE001 - no thread may start; without beats the node is gone
                self._tell(error)
                self._nap(_MANY)

    def _watch(self, kind: str) -> None:
        """Make sure that a thread waits for changes of that kind."""
        if kind not in self._watched and not self._stopping:
            self._begin(kind, lambda: self._follow(kind))
            self._watched.add(kind)

    # -- operating

    def _reconcile(self, operator: object) -> None:
        """Do all that there is to do now, then rest."""
        step = self._advance(self._next)
        while not isinstance(step, Rest):
            if self._stopping:
                return
            step = self._performed(step)
        self._rest(step, operator)

    def _performed(self, operation: Operation) -> Operation | Rest:
        """Tell the node whether the operation was carried out."""
        fault: Exception | None = None
        answer = None
        try:
            answer = self._operations.perform(operation)
        except Exception as error:  # noqa: BLE001 - what a fault of one operation means is the node's to say
            fault = error

        def heard(node: Node, now: Instant) -> Operation | Rest:
            if fault is None:
                node.answered(answer, now)
            else:
                node.broke(fault, now)
            return self._next(node, now)

        return self._advance(heard)

    def _next(self, node: Node, now: Instant) -> Operation | Rest:
        step = node.next(now, self._backend.vacant)
        if isinstance(step, Rest):
            self._rests += 1
            self._rested.notify_all()
        return step

    def _advance(self, event: Callable[[Node, Instant], T]) -> T:
        """Let the node go on, and tell those who wait what has become of it."""
        node = self._node
        with self._changed:
            before = (node.state, node.connection.outage, node.fault, node.lingers)
            found = event(node, self._clock.now())
            notes, settled = node.take_notes(), node.take_settled()
            for request, fault in settled:
                if id(request) in self._pending:
                    pending = self._pending[id(request)]
                    pending.done, pending.fault = fault is None, fault
            after = (node.state, node.connection.outage, node.fault, node.lingers)
            changed = any(map(is_not, after, before))
            if changed or settled:
                self._changed.notify_all()
        _log(notes)
        if changed:
            self._notify()
        return found

    def _notify(self) -> None:
        for listener in self._listeners:
            try:
                listener()
            except Exception as error:  # noqa: BLE001 - the beats go on, whatever a listener does
                reason = f"a listener raised {type(error).__name__}: {error}"
                get_logger().warning("rendezvous fault", reason=reason, exc_info=error)

    # -- resting, and waiting for news

    def _rest(self, rest: Rest, operator: object) -> None:
        kind = _ROSTER if rest.roster else _STATE
        with self._changed:
            if self._woken or self._stopping:
                self._woken = False
                return
            self._in_store = self._gathers() and kind not in self._watched
            if self._in_store:
                self._watched.add(kind)
            else:
                self._rest_here(rest)
                return
        self._rest_in_store(kind, rest, operator)

    def _rest_here(self, rest: Rest) -> None:
        if self._node.registered is not None:
            self._watch(_STATE)
        if rest.roster:
            self._watch(_ROSTER)
        left = min(max(rest.until - self._clock.now(), 0.0), _LONGEST_WAIT)
        self._changed.wait_for(lambda: self._woken or self._stopping, left)
        self._woken = False

    def _gathers(self) -> bool:
        """Whether this node waits for the first round that it sees, or one has formed a moment ago."""
        node = self._node
        if node.registered is None or node.state is None or node.state.closed:
            return False
        if node.state.open and self._settled_at is None:
            self._settled_at = later(self._clock.now(), _SETTLING * len(node.state.seats))
        return self._settled_at is None or self._clock.now() < self._settled_at

    def _rest_in_store(self, kind: str, rest: Rest, operator: object) -> None:
        until = rest.until if self._settled_at is None else min(rest.until, self._settled_at)
        limit = min(max(until - self._clock.now(), 0.0), _LONGEST_WAIT)
        before = self._known(kind)
        news = limit > 0 and self._waited(kind, limit)
        self._take_news(kind, news)
        with self._changed:
            if self._operator is operator:
                self._in_store = False
                self._watched.discard(kind)
        if self._operator is operator:
            # What cannot be taken up now is news again at once; the next news shows whether it was taken up.
            self._useless = self._useless + 1 if news and before == self._known_before else 0
            self._known_before = before if news else _NOTHING
            self._nap(self._useless)
        else:
            self._follow(kind)

    def _follow(self, kind: str) -> None:
        useless = 0
        while not self._stopping:
            if kind == _ROSTER and not self._node.wants_roster:
                with self._changed:
                    self._rested.wait_for(lambda: self._node.wants_roster or self._stopping, _LONGEST_WAIT)
                continue
            before = self._known(kind)
            if self._waited(kind, _LONGEST_WAIT):
                self._take_news(kind, news=True)
                self._pass_on()
                useless = useless + 1 if self._known(kind) == before else 0
                self._pause(useless)

    def _known(self, kind: str) -> object:
        """Changes when news was taken up."""
        with self._changed:
            return self._node.token if kind == _STATE else self._node.seen.roster

    def _waited(self, kind: str, timeout: Duration) -> bool:
        """Whether there is news of that kind."""
        with self._changed:
            token, lacking = self._node.token, self._node.lacking
        try:
            if kind == _STATE:
                return self._backend.wait_for_state(token, timeout)
            return self._backend.wait_for_roster(timeout, lacking)
        except Exception as error:  # noqa: BLE001 - a node without its watchers is deaf, and nobody would see why
            if not isinstance(error, RendezvousError) and not self._stopping:
                self._tell(error)
            self._pause(_MANY)
            return False

    def _take_news(self, kind: str, news: bool) -> None:
        """A thread that waited for the roster has not seen whether the state changed, unless another thread watches
        it."""
        with self._changed:
            if kind == _ROSTER:
                self._node.roster_changed()
            if (news and kind == _STATE) or (kind == _ROSTER and _STATE not in self._watched):
                self._node.state_changed()

    def _pass_on(self) -> None:
        """Let the news be taken up, and wait for that: otherwise the same news would come again and again."""
        with self._changed:
            target = self._rests + 1
            self._woken = True
            self._changed.notify_all()
            self._rested.wait_for(lambda: self._rests >= target or self._stopping, _AFTER_ERROR)

    def _pause(self, useless: int) -> None:
        """What cannot be taken up now (the store is out of reach, or what is there cannot be read) is news again at
        once: without a pause the threads would keep each other busy."""
        if useless > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, self._patience.pauses.pause(useless))

    def _nap(self, useless: int) -> None:
        """The same for the operating thread; a wake ends the pause."""
        if useless > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._woken or self._stopping, self._patience.pauses.pause(useless))
                self._woken = False

    def _tell(self, error: Exception) -> None:
        with self._changed:
            known = type(error) in self._told
            self._told.add(type(error))
        if not known:
            get_logger().warning("rendezvous fault", reason=f"{type(error).__name__}: {error}", exc_info=error)


class Operations:
    """A node's operations on a backend, between values and bytes. Used by one thread at a time."""

    def __init__(self, backend: RosterBackend) -> None:
        self._backend = backend
        self._entries: dict[tuple[str, bytes], Entry | None] = {}
        self._seats = NOBODY

    def perform(self, operation: Operation) -> Any:
        """The answer to the operation, as `effects` says. Raises what the backend raises, and RendezvousStateError."""
        try:
            if isinstance(operation, ReadState):
                return self._state_of(self._backend.get_state())
            if isinstance(operation, WriteState):
                return self._written(operation)
        except SpoiltStateError as error:
            spoilt = Unreadable(str(error), error.others, error.secret)
            return (spoilt, error.token) if isinstance(operation, ReadState) else (spoilt, error.token, False)
        if isinstance(operation, ReadRoster):
            return self._roster()
        if isinstance(operation, Announce):
            return self._backend.announce(operation.entry.key, encoded_entry(operation.entry))
        if isinstance(operation, Withdraw):
            return self._backend.withdraw(operation.key)
        if isinstance(operation, HandOver):
            return self._backend.hand_over(operation.heirs, operation.timeout)
        assert isinstance(operation, Beat)
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
            raise SpoiltStateError(str(error), found[1]) from error
        self._seats = state.seats
        return state, found[1]

    def _roster(self) -> tuple[Registration, ...]:
        found = self._backend.roster()
        self._entries = {(item.key, item.entry): self._decoded(item.key, item.entry) for item in found}
        return tuple(Registration(item.key, self._entries[item.key, item.entry], item.beats) for item in found)

    def _decoded(self, key: str, data: bytes) -> Entry | None:
        """The entry, or None if it cannot be read: its node cannot take part, but one bad entry must not stop
        others."""
        if (key, data) in self._entries:
            return self._entries[key, data]
        try:
            entry = decoded_entry(data)
            if entry.key == key:
                return entry
            reason = f"expected the entry of {key!r}, found that of {entry.key!r}"
        except RendezvousStateError as error:
            reason = str(error)
        get_logger().warning("entry not readable", node=key, reason=reason)
        return None


def _conditions() -> tuple[threading.Condition, threading.Condition]:
    """Two conditions of one lock: something has changed; the node rests. So beats do not wake threads that wait for a
    change."""
    lock = threading.RLock()
    return threading.Condition(lock), threading.Condition(lock)


def _log(notes: tuple[Note, ...]) -> None:
    for note in notes:
        trace = {"exc_info": note.trace} if note.trace else {}
        getattr(get_logger(), note.level)(note.event, **note.fields, **trace)
