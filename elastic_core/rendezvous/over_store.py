"""A rendezvous backend over any key-value store that has compare_set, get, set, add, check and wait: versions of the
state, and a log of announcements. Push is the store's `wait`."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from elastic_core.clock import SystemClock, later
from elastic_core.errors import (
    ConfigurationError,
    ElasticError,
    Problem,
    RendezvousConnectionError,
    RendezvousStateError,
)
from elastic_core.interfaces.backend import EntryDroppedError, RosterBackend, SpoiltStateError
from elastic_core.log import get_logger
from elastic_core.rendezvous.handover import HEIR_PATIENCE, POINTER_PATIENCE, Moved, Pointer, turn
from elastic_core.rendezvous.roster_log import Announcer, RosterLog
from elastic_core.rendezvous.seal import HmacSeal
from elastic_core.rendezvous.versions import (
    EpochLeft,
    Foreign,
    Keys,
    Moving,
    Version,
    Versions,
    add,
    compare_set,
    create,
    epoch_named,
    foreign,
    is_wait_timeout,
    new_epoch,
    peek,
    standing,
)
from elastic_core.support.addresses import joined_host_port, split_host_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.backend import Announced, Seal, Token
    from elastic_core.interfaces.store import Store
    from elastic_core.rendezvous.handover import StoreMover
    from elastic_core.support.retry import Backoff

T = TypeVar("T")
HOLE_PATIENCE: Duration = 2.0
_AT_ONCE: Duration = 0.001
_LONGEST_PLACE = 1024
_MOST_EPOCHS = 3  # that one operation begins
_MOST_MOVES = 3  # that one operation follows
_ABSENT_PATIENCE: Duration = 2.0  # an answer takes less
_PIECE: Duration = 1.0  # of a wait that cannot be interrupted
FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)


class StoreConnection:
    """One connection to a store. Derive from it if a store can do more than this.

    Args:
        store: used by one thread at a time.
        where: the store, for messages.
    """

    def __init__(self, store: Store, where: str) -> None:
        self.store: Any = store
        self.where = where

    def fetch(self, key: str, timeout: Duration, closed: threading.Event) -> bytes | None:
        """The value of the key, once it is there; None after `timeout` seconds, soon after `closed` is set, and for a
        key that was there and is not any more."""
        clock = SystemClock()
        until = later(clock.now(), timeout)
        while not closed.is_set() and (left := until - clock.now()) > 0:
            try:
                self.store.wait([key], timedelta(seconds=max(min(left, _PIECE), 0.001)))
            except Exception as error:
                if not is_wait_timeout(error):
                    raise
            else:
                return peek(self.store, key)
        return None

    def asked_for(self, key: str, timeout: Duration, closed: threading.Event, pauses: Backoff) -> bytes | None:
        """The same for a store whose `wait` cannot be used: the key is asked for, with these pauses."""
        clock, asked = SystemClock(), 0
        until = later(clock.now(), timeout)
        while not closed.is_set():
            if (found := peek(self.store, key)) is not None:
                return found
            if (left := until - clock.now()) <= 0:
                break
            asked += 1
            closed.wait(min(pauses.pause(asked), left))
        return None

    def hasten(self, seconds: Duration) -> None:
        """Let a `get` of a key that has just been deleted wait for so long, if that can be said."""

    def abort(self) -> None:
        """Let every operation on it fail now, blocked ones included, if that is possible. Any thread. Idempotent."""

    def release(self) -> None:
        """Release it. Idempotent."""
        close = getattr(self.store, "close", None)
        if close is not None:
            close()


class StoreConnector(Protocol):
    """Makes connections to one store. `connect` is called from several threads."""

    @property
    def where(self) -> str:
        """The store, for messages."""
        ...

    @property
    def hosts(self) -> bool:
        """Whether the store lives in this process, and ends with `close`."""
        ...

    @property
    def grace(self) -> Duration:
        """See `RosterBackend.grace`."""
        ...

    def connect(self, aside: bool = False) -> StoreConnection:
        """A connection. `aside`: one for waiting, beside a main one that stands or has just failed: no long patience.

        Raises:
            RendezvousConnectionError: none could be made within the connector's own bounds, or the connector was
                closed.
        """
        ...

    def close(self) -> None:
        """Let connecting fail, now and later. Ends what is hosted here. Idempotent."""
        ...


class FactoryConnector:
    """Connections to a store that a function makes, one for each thread that uses it.

    Args:
        make: makes a client of the store; may raise anything.
        where: the store, for messages.
        grace: see `RosterBackend.grace`.
    """

    hosts = False

    def __init__(self, make: Callable[[], Store], where: str, grace: Duration = 0.0) -> None:
        self._make = make
        self.where = where
        self.grace = grace

    def connect(self, aside: bool = False) -> StoreConnection:
        try:
            return StoreConnection(self._make(), self.where)
        except (ElasticError, *FAULTS):
            raise
        except Exception as error:
            raise unreachable("connecting", self.where, error) from error

    def close(self) -> None:
        """The caller that got a connection releases it."""


def unreachable(doing: str, where: str, error: BaseException) -> RendezvousConnectionError:
    """The error for a store operation that failed. Raise it `from error`. A stack trace of C++ is cut off."""
    lines = str(error).strip().splitlines()
    said = lines[0].strip() if lines else type(error).__name__
    return RendezvousConnectionError(f"{doing} at {where} failed: {said}")


class _Line:
    """One thread's line to the store: connects when it is first used and after every fault, and can be cut from
    outside.

    Args:
        connector: where connections come from.
        aside: this line only waits, beside a main one.
        greet: called with the store of every new connection before it is used otherwise.
    """

    def __init__(self, connector: StoreConnector, aside: bool, greet: Callable[[Store], object]) -> None:
        self._connector = connector
        self._aside = aside
        self._greet = greet
        self._lock = threading.RLock()
        self._connection: StoreConnection | None = None
        self._closed = threading.Event()
        self._elsewhere = False

    def use(self, doing: str, operation: Callable[[Store], T]) -> T:
        """Do something with the store. After a fault the connection is dropped, and the next call makes a new one.

        Raises:
            RendezvousConnectionError: the store cannot be reached, the operation broke off, or the line was closed.
        """
        with self._lock:
            return self._tried(doing, lambda connection: operation(connection.store))

    def fetch(self, key: str, timeout: Duration, stands: Callable[[], bool] = lambda: True) -> bytes | None:
        """The value of the key, once it is there; None after `timeout` seconds, and when the line is closed. `stands`:
        whether it is still the key to wait for, asked once there is a connection. Raises: as `use`, except that a
        closed line is no fault; EpochLeft if the key does not stand."""

        def waited(connection: StoreConnection) -> bytes | None:
            if not stands():
                raise EpochLeft
            return connection.fetch(key, timeout, self._closed)

        return self._unless_closed(waited)

    def look(self, operation: Callable[[Store], T]) -> T | None:
        """The same for any operation: None when the line is closed."""
        return self._unless_closed(lambda connection: operation(connection.store))

    def _unless_closed(self, operation: Callable[[StoreConnection], T]) -> T | None:
        with self._lock:
            try:
                return None if self._closed.is_set() else self._tried("waiting", operation)
            except RendezvousConnectionError:
                if self._closed.is_set() or self._elsewhere:
                    return None
                raise

    def close(self) -> None:
        """Cut the line. Any thread."""
        self._closed.set()
        self._cut()

    def renew(self) -> None:
        """The store is elsewhere: cut the connection, and make another one when it is needed. Who waits is told that
        there is no news. Any thread."""
        self._elsewhere = True
        self._cut()

    def _cut(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.abort()
        if self._lock.acquire(blocking=False):  # else the thread that uses it finds it cut, and drops it
            try:
                self._drop()
            finally:
                self._lock.release()

    def _tried(self, doing: str, operation: Callable[[StoreConnection], T]) -> T:
        try:
            return operation(self._connected())
        except (ElasticError, EpochLeft, Moving, Moved):
            raise  # no word of the store about its connection
        except Exception as error:
            self._drop()
            if isinstance(error, ImportError):  # which comes again
                needed = f"expected a store whose client can be imported, found {type(error).__name__}: {error}"
                raise ConfigurationError(Problem("--rdzv-backend", f"{needed}; repair what is installed")) from error
            if isinstance(error, FAULTS):  # no word about the connection either, but a client may be broken for good
                raise
            raise unreachable(doing, self._connector.where, error) from error
        finally:
            if self._closed.is_set():
                self._drop()

    def _connected(self) -> StoreConnection:
        if self._elsewhere:
            self._elsewhere = False
            self._drop()
        if self._connection is None and not self._closed.is_set():
            connection = self._connector.connect(self._aside)
            try:
                connection.hasten(_ABSENT_PATIENCE)
                self._greet(connection.store)
            except BaseException:
                connection.release()
                raise
            self._connection = connection
        if self._connection is None or self._closed.is_set():
            self._drop()
            raise RendezvousConnectionError(f"the connection to {self._connector.where} was closed by this side")
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.release()
            self._connection = None


@dataclass
class _Epoch:
    """What is known of one epoch of the store: of the time since it was last empty, or something else has spoilt what
    stood there."""

    keys: Keys
    versions: Versions
    announcer: Announcer
    log: RosterLog

    @property
    def name(self) -> str:
        return self.keys.epoch


@dataclass(frozen=True)
class _Pushed:
    epoch: _Epoch
    number: int
    value: bytes


class OverStore(RosterBackend):
    """See above.

    It uses up to three connections, made when they are first needed: one for operations and one for each of the two
    waits. A store that was restarted empty is noticed when a connection to it is made or, since some clients reconnect
    by themselves, by counters that fell; everything known of the old one is forgotten then, and what this node has
    announced is announced again, or its next beat says that the entry was dropped. The same holds for a store that came
    back with data of an earlier time, without the newest version of the state; and for one in which something else has
    written, so that what stands there cannot be: the nodes leave that behind and begin a new epoch beside it.

    Args:
        connector: becomes this backend's.
        run_id: the job; jobs with different ids do not see each other in one store.
        name: that it is selected by.
        clock: times how long a slot of the log stays unfilled.
        hole_patience: seconds after which an unfilled slot is given up.
        observes: it only looks, until it announces, beats or writes the state: it changes nothing, and does not begin
            the epoch of an empty store.
        mover: can have the store elsewhere; None: the store never moves.

    Every method but `close` raises:
        RendezvousConnectionError: the store cannot be reached. The next call tries again.
        RendezvousStateError: something else writes to our keys all the time, or has once, and this one only looks.
    """

    def __init__(
        self,
        connector: StoreConnector,
        run_id: str,
        name: str = "store",
        clock: Clock | None = None,
        hole_patience: Duration = HOLE_PATIENCE,
        observes: bool = False,
        mover: StoreMover | None = None,
    ) -> None:
        self._run_id = run_id
        self._seal: Seal = HmacSeal(run_id)
        self._name = name
        self._clock = clock or SystemClock()
        self._hole_patience = hole_patience
        self._observes = observes
        self._connector = connector
        self._mover = mover
        self._pointer: Pointer | None = None
        self._unanswered: tuple[str, bytes | None, Instant] | None = None
        self._epoch: _Epoch | None = None
        self._pushed: _Pushed | None = None
        self._state_line = _Line(connector, aside=True, greet=self._greet_aside)
        self._roster_line = _Line(connector, aside=True, greet=self._greet_aside)
        self._main = _Line(connector, aside=False, greet=self._arrived)

    @property
    def name(self) -> str:
        return self._name

    @property
    def hosts_store(self) -> bool:
        return self._connector.hosts

    @property
    def grace(self) -> Duration:
        return self._connector.grace

    def sign_with(self, seal: Seal) -> bool:
        self._seal = seal
        if self._epoch is not None:  # it is connected already
            self._epoch = self._known_as(self._epoch.name)
        return True

    def connect(self) -> None:
        """Connect now rather than at the first use. Takes as long as the connector's patience at most, and comes back
        with an error soon after `close`."""
        self._use("connecting", lambda store, epoch: None)

    def get_state(self) -> tuple[bytes, Version] | None:
        pushed, self._pushed = self._pushed, None

        def read(store: Store, epoch: _Epoch) -> tuple[bytes, Version] | None:
            if pushed is not None and pushed.epoch is epoch and epoch.versions.adopt(pushed.number, pushed.value):
                return epoch.versions.standing()
            found = epoch.versions.newest(store)
            current = self._doubted(store, epoch) if epoch.versions.doubtful else epoch
            return found if current is epoch else current.versions.newest(store)

        return self._use("reading the state", read)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Version, bool] | None:
        def write(store: Store, _: _Epoch) -> tuple[bytes, Version, bool] | None:
            epoch = self._greet(store)  # a token of before must write nothing in a store that began anew
            if token is None or (isinstance(token, Version) and token.epoch == epoch.name):
                return epoch.versions.write(store, state, 0 if token is None else token.number)
            standing = epoch.versions.newest(store)
            return None if standing is None else (*standing, False)

        return self._use("writing the state", write, takes_part=True)

    def announce(self, key: str, entry: bytes) -> int:
        def write(store: Store, epoch: _Epoch) -> int:
            return epoch.announcer.announce(store, key, entry)

        return self._use("announcing this node", write, takes_part=True)

    def withdraw(self, key: str) -> None:
        def write(store: Store, epoch: _Epoch) -> None:
            epoch.announcer.withdraw(store, key, epoch.log.first_slot(key))

        self._use("withdrawing a node", write)

    def beat(self, key: str, leading: bool, look: bool) -> int | None:
        def write(store: Store, epoch: _Epoch) -> int | None:
            try:
                epoch.announcer.beat(store, key)
            except EntryDroppedError:
                self._greet(store)
                raise
            return self._counted_lead(store, epoch.keys.lead, int(leading)) if leading or look else None

        return self._use("beating", write, takes_part=True)

    def roster(self) -> tuple[Announced, ...]:
        return self._use("reading the roster", lambda store, epoch: epoch.log.read(store))

    def wait_for_state(self, token: Token | None, timeout: Duration) -> bool:
        epoch = self._epoch
        if token is not None and epoch is not None and token.epoch != epoch.name:
            return True
        number = 1 if token is None else token.number + 1
        try:
            if epoch is None or not epoch.name:
                return self._state_line.fetch(Keys(self._run_id).id, timeout) is not None
            value = self._state_line.fetch(epoch.keys.state(number), timeout, lambda: self._epoch is epoch)
        except EpochLeft:
            return True
        if value is None:
            return self._has_passed(epoch, number - 1)
        self._pushed = _Pushed(epoch, number, value)  # what was waited for came with the news
        return True

    def wait_for_roster(self, timeout: Duration, more: int = 1) -> bool:
        epoch = self._epoch
        if epoch is None or not epoch.name:
            return self._is_filled(Keys(self._run_id).id, timeout, epoch)
        log = epoch.log
        if log.behind:  # the next look fills the hole; until then there is nothing else to see
            patience = min(timeout, self._hole_patience)
            return self._is_filled(epoch.keys.slot(log.cursor + 1), patience, epoch) or timeout >= self._hole_patience
        return self._is_filled(epoch.keys.slot(log.cursor + more), timeout, epoch)

    def hand_over(self, heirs: Sequence[str], timeout: Duration) -> bool:
        def ended(store: Store, epoch: _Epoch) -> tuple[str, set[str]] | None:
            own = set(epoch.announcer.keys)
            present = [item.key for item in epoch.log.read(store) if item.key not in own]
            first = [key for key in heirs if key in present]
            if not present:
                return None
            epoch.versions.freeze(store, [*first, *(key for key in present if key not in first)])
            return self._successor(store, epoch, timeout, stays=True), set(present)

        if self._mover is None or not self._connector.hosts:
            return False
        pointer, found = self._pointer, None
        if pointer is not None:
            pointer.close()  # before an heir takes the place that it is for
        try:
            found = self._use("handing over the store", ended)
        finally:
            if pointer is not None and (found is None or not found[0]):
                self._pointer = pointer.anew()
        if found is None or not found[0]:
            return False
        where, present = found
        get_logger().info("store handed over", endpoint=where)
        self._go(where)
        self._await(present, later(self._clock.now(), timeout))
        return True

    def close(self) -> None:
        """Every blocked call comes back at once: waits with False, others with RendezvousConnectionError. Where the
        connections cannot be cut, waits need 1 s, and others as long as they need."""
        if self._pointer is not None:
            self._pointer.close()
        for line in (self._main, self._state_line, self._roster_line):
            line.close()  # before connecting is given up, which is no fault of the store then
        self._connector.close()

    def _counted_lead(self, store: Store, key: str, amount: int) -> int:
        """What counts is that it moves: if something else has written to it, the leader begins anew."""
        try:
            return add(store, key, amount)
        except RendezvousStateError:
            if amount:
                store.set(key, b"%d" % amount)
            return amount

    def _has_passed(self, epoch: _Epoch, number: int) -> bool:
        """Whether the version that was waited for has long come and gone: the waiting thread may have slept before."""
        return bool(self._state_line.look(lambda store: epoch.versions.passed(store, number)))

    def _is_filled(self, slot: str, timeout: Duration, epoch: _Epoch | None) -> bool:
        try:
            return self._roster_line.fetch(slot, timeout, lambda: self._epoch is epoch) is not None
        except EpochLeft:
            return True

    def _use(self, doing: str, operation: Callable[[Store, _Epoch], T], takes_part: bool = False) -> T:
        trail: dict[str, bool] = {}
        for _ in range(_MOST_MOVES):
            try:
                return self._use_here(doing, operation, takes_part, trail)
            except Moved as moved:
                trail[moved.where] = False
                self._go(moved.where)
        raise RendezvousConnectionError("expected the store where its nodes say, found that it moves on and on")

    def _use_here(
        self, doing: str, operation: Callable[[Store, _Epoch], T], takes_part: bool, trail: dict[str, bool]
    ) -> T:
        def with_epoch(store: Store) -> T:
            assert self._epoch is not None  # `_greet` came first
            if self._observes and takes_part:
                self._observes, self._epoch = False, None  # what it has seen it looks at again
            epoch = self._greet(store) if self._epoch is None or not self._epoch.name else self._epoch
            for _ in range(_MOST_EPOCHS):
                try:
                    return self._followed(store, epoch, operation, trail)
                except EpochLeft:
                    if self._greet(store) is epoch:
                        self._leave(store, epoch, "a marker of another epoch")
                except Foreign as error:
                    if self._observes and self._greet(store) is epoch:
                        raise
                    self._leave(store, epoch, str(error))
                epoch = self._greet(store)
            raise foreign("the keys of a job", "that something else writes to them all the time")

        return self._main.use(doing, with_epoch)

    # -- where the store is, see `handover`

    def _followed(
        self, store: Store, epoch: _Epoch, operation: Callable[[Store, _Epoch], T], trail: dict[str, bool]
    ) -> T:
        """What it returns. `trail`: where this operation was led, and whether it came there. Raises Moved where the
        store is another one now, and EpochLeft where it stays after all."""
        try:
            return operation(store, epoch)
        except Moving as moving:
            heirs = moving.heirs
        if where := self._led_on(store, epoch, heirs, trail):
            raise Moved(where)
        self._begin_epoch(store, epoch)
        raise EpochLeft

    def _led_on(self, store: Store, epoch: _Epoch, heirs: Sequence[str], trail: dict[str, bool]) -> str:
        """Where a marker leads; empty if it counts for nothing, because it leads nowhere or the nodes have left this
        epoch. Raises RendezvousConnectionError while that is not known, and to who only looks."""
        if self._has_ended(store, epoch):
            return ""
        try:
            where = self._successor(store, epoch, HEIR_PATIENCE * (1 + len(heirs)), heirs)
            if self._mover is None or not where or (where not in trail and not self._mover.leads_to(where)):
                return where
            trail.update((place, True) for place in trail if self._mover.leads_to(place))
            found, circles = f"that nobody answers at {where}", trail.get(where, True)
        except RendezvousConnectionError as error:
            found, circles = str(error), self._connector.hosts  # which would know
        if self._has_ended(store, epoch) or (not self._observes and (circles or self._is_left(store, epoch))):
            return ""
        raise RendezvousConnectionError(f"expected the store where its last host says, found {found}")

    def _has_ended(self, store: Store, epoch: _Epoch) -> bool:
        return epoch_named(peek(store, epoch.keys.id) or b"") != epoch.name

    def _is_left(self, store: Store, epoch: _Epoch) -> bool:
        """Whether no host of the store has looked here for some time."""
        looks, now = peek(store, epoch.keys.pointed), self._clock.now()
        if self._unanswered is None or self._unanswered[:2] != (epoch.name, looks):
            self._unanswered = epoch.name, looks, now
        return now - self._unanswered[2] >= POINTER_PATIENCE

    def _go(self, where: str) -> None:
        """Everything goes on there."""
        assert self._mover is not None
        self._mover.moved(where)
        self._main.renew()

    def _successor(
        self, store: Store, epoch: _Epoch, timeout: Duration, heirs: Sequence[str] = (), stays: bool = False
    ) -> str:
        """Where the store is from now on; empty: here. This node takes it over in its turn.

        Args:
            stays: it is this node's, and stays if nobody has taken it over in time.

        Raises:
            RendezvousConnectionError: nobody has taken it over yet.
        """
        if self._mover is None:
            raise foreign("a store that never moves", "a marker that it has")
        place = None if self._observes else turn(heirs, epoch.announcer.keys, self._mover.listed)
        key = epoch.keys.moved
        value = self._main.fetch(key, timeout if place is None else max(HEIR_PATIENCE * place, _AT_ONCE))
        if value is None and place is not None:
            value = self._inherit(store, epoch)
        if value is None and stays:
            value = create(store, key, self._seal.sealed(key, b""))
        if value is None:
            raise RendezvousConnectionError("that it has gone, and that no other node has taken it over yet")
        opened = self._seal.opened(key, value)
        where = "?" if opened is None else opened[:_LONGEST_PLACE].decode(errors="replace")
        try:
            host, port = split_host_port(where, 0) if where else ("", 1)
        except ValueError as error:
            raise foreign(f"a place under the key {key!r}", str(error)) from error
        if not port:
            raise foreign(f"a place with a port under the key {key!r}", repr(where))
        return host and joined_host_port(host, port)

    def _inherit(self, store: Store, epoch: _Epoch) -> bytes | None:
        """Serve the store, and say so. Returns what stands in the old one afterwards; None if it cannot be here."""
        assert self._mover is not None
        served = self._mover.serve()
        if served is None:
            return None
        where, connection = served
        told = self._seal.sealed(epoch.keys.moved, where.encode())
        try:
            begun = self._known_as(epoch_named(create(connection.store, Keys(self._run_id).id, new_epoch())))
            with contextlib.suppress(SpoiltStateError):  # then the nodes give back what they know
                standing = epoch.versions.standing()
                if standing is not None:
                    begun.versions.write(connection.store, standing[0], 0)
            found = create(store, epoch.keys.moved, told)
        except Moving:  # somebody has pointed it elsewhere, before anything stood in it
            self._mover.serve_no_more()
            return None
        finally:
            connection.release()
        if found != told:
            self._mover.serve_no_more()
            return found
        get_logger().info("store taken over", endpoint=where)
        self._pointer = Pointer(self._mover, self._run_id, self._seal, where)
        return told

    def _await(self, present: set[str], until: Instant) -> None:
        """Wait for these nodes to come to the store where it is now."""
        left = until - self._clock.now()
        while left > 0 and not present <= {item.key for item in self.roster()}:
            epoch = self._epoch
            assert epoch is not None
            with contextlib.suppress(EpochLeft):
                self._main.fetch(epoch.keys.slot(epoch.log.cursor + 1), left)
            left = until - self._clock.now()

    def _arrived(self, store: Store) -> None:
        """A connection before this one was lost. Those beside it may lead to where nothing comes from any more."""
        self._greet(store)
        for line in (self._state_line, self._roster_line):
            line.renew()

    def _greet(self, store: Store) -> _Epoch:
        """The epoch of the store, begun anew where it is another one than before."""
        name = self._name_of_epoch(store)
        before = self._epoch
        if before is None or before.name != name:
            epoch = self._known_as(name)
            if before is not None:
                try:
                    before.announcer.move_to(epoch.announcer, store)
                except Foreign:
                    self._begin_epoch(store, epoch)
                    raise
            self._epoch = epoch
            if before is not None:
                before.versions.leave(store)
        assert self._epoch is not None
        return self._epoch

    def _known_as(self, name: str) -> _Epoch:
        keys = Keys(self._run_id, name)
        log = RosterLog(keys, self._seal, self._clock, self._hole_patience, self._observes)
        return _Epoch(keys, Versions(keys, self._seal, self._observes), Announcer(keys, self._seal), log)

    def _leave(self, store: Store, epoch: _Epoch, found: str) -> None:
        """All nodes are to leave the epoch."""
        if not self._observes:
            get_logger().warning("store spoilt", reason=found)
            self._begin_epoch(store, epoch)

    def _begin_epoch(self, store: Store, after: _Epoch) -> None:
        """Unless another node has done so already."""
        standing = peek(store, after.keys.id)
        if standing is not None and epoch_named(standing) == after.name:
            compare_set(store, after.keys.id, standing, new_epoch())

    def _doubted(self, store: Store, epoch: _Epoch) -> _Epoch:
        """The epoch of a store that knows less than this node does. One that came back with older data, and so with its
        old name, begins anew here: otherwise versions would be missing between what it knows and what nodes know."""
        if not self._observes and epoch.versions.lost(store):
            self._begin_epoch(store, epoch)
        return self._greet(store)

    def _name_of_epoch(self, store: Store) -> str:
        key = Keys(self._run_id).id
        if self._observes:
            return epoch_named(peek(store, key) or b"")
        return epoch_named(create(store, key, new_epoch()))

    def _greet_aside(self, store: Store) -> None:
        name = standing(store, Keys(self._run_id).id)  # none where it began anew, or is observed before it begins
        if self._epoch is not None and epoch_named(name or b"") != self._epoch.name:
            raise EpochLeft
