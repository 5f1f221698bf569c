"""A rendezvous backend over any key-value store that has compare_set, get, set, add, check and wait: versions of the
state, and a log of announcements. Push is the store's `wait`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from elastic_core.clock import SystemClock, later
from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.interfaces.backend import EntryDroppedError, RosterBackend, SpoiltStateError
from elastic_core.log import get_logger
from elastic_core.rendezvous.handover import HEIR_PATIENCE, POINTER_PATIENCE, Moved, Pointer, turn
from elastic_core.rendezvous.roster_log import RosterLog
from elastic_core.rendezvous.seal import HmacSeal
from elastic_core.rendezvous.store_connection import Line
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
    from elastic_core.rendezvous.store_connection import StoreConnector

T = TypeVar("T")
HOLE_PATIENCE: Duration = 2.0
_AT_ONCE: Duration = 0.001
_LONGEST_PLACE = 1024
_MOST_EPOCHS = 3  # that one operation begins
_MOST_MOVES = 3  # that one operation follows


@dataclass
class _Epoch:
    """What is known of one epoch of the store: of the time since it was last empty, or something else has spoilt what
    stood there."""

    keys: Keys
    versions: Versions
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
    """A backend over any store.

    It uses up to three connections, made when they are first needed: one for operations and one for each of the two
    waits. A store that was restarted empty is noticed when a connection to it is made or, since some clients reconnect
    by themselves, by counters that fell; everything known of the old one is forgotten then, and the next beat raises
    EntryDroppedError. Only if another node has taken the store over, with its data, the entries of this node are
    announced there. The same holds for a store that came
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
        self._is_handed_over = False
        self._pushed: _Pushed | None = None
        self._state_line = Line(connector, aside=True, greet=self._greet_aside)
        self._roster_line = Line(connector, aside=True, greet=self._greet_aside)
        self._main = Line(connector, aside=False, greet=self._arrived)

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
            return epoch.versions.newest(store)

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
            return epoch.log.announce(store, key, entry)

        return self._use("announcing this node", write, takes_part=True)

    def withdraw(self, key: str) -> None:
        def write(store: Store, epoch: _Epoch) -> None:
            epoch.log.withdraw(store, key)

        self._use("withdrawing a node", write)

    def beat(self, key: str, leading: bool, look: bool) -> int | None:
        def write(store: Store, epoch: _Epoch) -> int | None:
            self._give_way(store, epoch)
            try:
                epoch.log.beat(store, key)
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
            own = set(epoch.log.own_keys)
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
                except EpochLeft as error:
                    if self._greet(store) is epoch:
                        self._leave(store, epoch, str(error) or "a marker of another epoch")
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
        """Use the store at `where` from now on. If this node serves it, keep pointers to it at the endpoint."""
        assert self._mover is not None
        if self._pointer is not None:
            self._pointer.close()
        self._mover.moved(where)
        serves = self._connector.hosts
        self._pointer = Pointer(self._mover, self._run_id, self._seal, where) if serves else None
        self._is_handed_over = True
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
        place = None if self._observes else turn(heirs, epoch.log.own_keys, self._mover.listed)
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
        forward = self._seal.sealed(epoch.keys.moved, where.encode())
        try:
            begun = self._known_as(epoch_named(create(connection.store, Keys(self._run_id).id, new_epoch())))
            with contextlib.suppress(SpoiltStateError):  # then the nodes give back what they know
                standing = epoch.versions.standing()
                if standing is not None:
                    begun.versions.write(connection.store, standing[0], 0)
            found = create(store, epoch.keys.moved, forward)
        except Moving:  # somebody has pointed it elsewhere, before anything stood in it
            self._mover.serve_no_more()
            return None
        finally:
            connection.release()
        if found != forward:
            self._mover.serve_no_more()
            return found
        get_logger().info("store taken over", endpoint=where)
        return forward

    def _give_way(self, store: Store, epoch: _Epoch) -> None:
        """Raises Moving where nodes have gone on at the endpoint, while this store was cut off from it: all that are
        here join them."""
        where = "" if self._pointer is None else self._pointer.overtaken_at
        if where and self._connector.hosts:
            create(store, epoch.keys.moved, self._seal.sealed(epoch.keys.moved, where.encode()))
            epoch.versions.freeze(store, [])
            raise Moving(())

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
            if before is not None and self._is_handed_over:
                try:
                    before.log.move_to(epoch.log, store)
                except Foreign:
                    self._begin_epoch(store, epoch)
                    raise
            self._is_handed_over = False
            self._epoch = epoch
            if before is not None:
                before.versions.leave(store)
                self._roster_line.renew()  # it may wait for a slot of the epoch before, which no node fills
        assert self._epoch is not None
        return self._epoch

    def _known_as(self, name: str) -> _Epoch:
        keys = Keys(self._run_id, name)
        log = RosterLog(keys, self._seal, self._clock, self._hole_patience, self._observes)
        return _Epoch(keys, Versions(keys, self._seal, self._observes), log)

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

    def _name_of_epoch(self, store: Store) -> str:
        key = Keys(self._run_id).id
        if self._observes:
            return epoch_named(peek(store, key) or b"")
        return epoch_named(create(store, key, new_epoch()))

    def _greet_aside(self, store: Store) -> None:
        name = standing(store, Keys(self._run_id).id)  # none where it began anew, or is observed before it begins
        if self._epoch is not None and epoch_named(name or b"") != self._epoch.name:
            raise EpochLeft
