"""A rendezvous backend over any key-value store that has compare_set, get, set, add, check and wait. The backend keeps
versions of the state and a log of announcements. It learns of changes through the store's `wait`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from elastic_core.clock import SystemClock, later
from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.interfaces.backend import EntryDroppedError, ForeignStateError, RosterBackend
from elastic_core.log import get_logger
from elastic_core.rendezvous.handover import HEIR_PATIENCE, POINTER_PATIENCE, STAYS, Pointer, StoreMoved, turn
from elastic_core.rendezvous.roster_log import RosterLog
from elastic_core.rendezvous.seal import HmacSeal, SignedBackend
from elastic_core.rendezvous.store_connection import ThreadConnection
from elastic_core.rendezvous.versions import (
    EpochEnded,
    ForeignWrite,
    Keys,
    StoreMoving,
    Version,
    Versions,
    add,
    compare_set,
    create,
    delete,
    epoch_named,
    foreign,
    new_epoch,
    peek,
    standing,
)
from elastic_core.support.sockets import joined_host_port, split_host_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.backend import Announced, RendezvousBackend, Seal, Store, Token
    from elastic_core.rendezvous.handover import StoreMover
    from elastic_core.rendezvous.store_connection import StoreConnector

T = TypeVar("T")
HOLE_PATIENCE: Duration = 2.0
_LONGEST_PLACE = 1024
_MOST_EPOCHS = 3  # the number of epochs that one operation may begin
_MOST_MOVES = 3  # the number of moves that one operation may follow


@dataclass
class _Epoch:
    """What this process knows about one epoch of the store. A new epoch begins when the store's data is lost or
    overwritten."""

    keys: Keys
    versions: Versions
    log: RosterLog

    @property
    def name(self) -> str:
        return self.keys.epoch


class StoreBackend(RosterBackend):
    """A rendezvous backend that uses a key-value store.

    The backend makes up to three connections, each when it is first needed: one for operations, and one for each of the
    two waits.

    If the store was restarted empty, the backend forgets everything, and the next heartbeat raises EntryDroppedError.
    The backend detects the restart when it connects or, because some clients reconnect on their own, when counters have
    fallen. The same happens if the store has returned with older data, or something else has written contradictory
    data. In the last two cases, the nodes also begin a new epoch.

    If another node has taken over the store with its data, the backend announces this node's entries again. In all
    other cases, the caller has to do so.

    Args:
        connector: makes the connections; this backend closes it.
        run_id: the job's run id; jobs with different ids do not see each other in one store.
        name: the name by which the backend is selected.
        clock: measures how long a slot in the log stays unfilled.
        hole_patience: seconds after which an unfilled slot is voided.
        observes: whether this process only reads until it announces an entry, sends a heartbeat or writes the state.
        mover: moves the store; None if the store never moves.

    Every method but `close` raises RendezvousConnectionError if the store cannot be reached; the next call tries again.
    These methods raise RendezvousStateError if something else keeps writing to the job's keys. If this process only
    reads, a single such write is enough.
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
        self._moved_to = ""
        self._unanswered: tuple[str, bytes | None, Instant] | None = None
        self._epoch: _Epoch | None = None
        self._is_handed_over = False
        self._pushed: tuple[_Epoch, int, bytes] | None = None  # a version that came with its notification
        self._state_line = ThreadConnection(connector, aside=True, on_connect=self._check_epoch)
        self._roster_line = ThreadConnection(connector, aside=True, on_connect=self._check_epoch)
        self._main = ThreadConnection(connector, aside=False, on_connect=self._reconnected)

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
        if self._epoch is not None:  # the connection already exists
            self._epoch = self._known_as(self._epoch.name)
        return True

    def connect(self) -> None:
        """Connect now rather than on first use. Fails soon after `close` is called."""
        self._use("connecting", lambda store, epoch: None)

    def get_state(self) -> tuple[bytes, Version] | None:
        pushed, self._pushed = self._pushed, None

        def read(store: Store, epoch: _Epoch) -> tuple[bytes, Version] | None:
            if pushed is not None and pushed[0] is epoch and epoch.versions.adopt(*pushed[1:]):
                return epoch.versions.standing()
            return epoch.versions.newest(store)

        return self._use("reading the state", read)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Version, bool] | None:
        def write(store: Store, _: _Epoch) -> tuple[bytes, Version, bool] | None:
            epoch = self._current_epoch(store)  # an old token must not be valid in a store that has been emptied
            if token is None or (isinstance(token, Version) and token.epoch == epoch.name):
                return epoch.versions.write(store, state, 0 if token is None else token.number)
            standing = epoch.versions.newest(store)
            return None if standing is None else (*standing, False)

        return self._use("writing the state", write, takes_part=True)

    def announce(self, key: str, entry: bytes) -> int:
        return self._use(
            "announcing this node", lambda store, epoch: epoch.log.announce(store, key, entry), takes_part=True
        )

    def withdraw(self, key: str) -> None:
        self._use("withdrawing a node", lambda store, epoch: epoch.log.withdraw(store, key))

    def beat(self, key: str, leading: bool, look: bool) -> int | None:
        def write(store: Store, epoch: _Epoch) -> int | None:
            self._give_way(store, epoch)
            try:
                epoch.log.beat(store, key)
            except EntryDroppedError:
                self._current_epoch(store)
                raise
            return self._counted_lead(store, epoch.keys.lead, int(leading)) if leading or look else None

        return self._use("sending a heartbeat", write, takes_part=True)

    def roster(self) -> tuple[Announced, ...]:
        def read(store: Store, epoch: _Epoch) -> tuple[Announced, ...]:
            if self._observes and epoch.versions.standing() is None:
                epoch.versions.newest(store)  # a store that only points to another one has no entries
            before = epoch.log.cursor
            entries = epoch.log.read(store)
            if epoch.log.cursor > before:  # the new node may have found older data, and wait for another state
                epoch.versions.verify(store)
            return entries

        return self._use("reading the roster", read)

    def wait_for_state(self, token: Token | None, timeout: Duration) -> bool:
        epoch = self._epoch
        if token is not None and epoch is not None and token.epoch != epoch.name:
            return True
        number = 1 if token is None else token.number + 1
        try:
            if epoch is None or not epoch.name:
                return self._state_line.fetch(Keys(self._run_id).id, timeout) is not None
            value = self._state_line.fetch(epoch.keys.state(number), timeout, lambda: self._epoch is epoch)
        except EpochEnded:
            return True
        if value is None:
            # The waiting thread may have slept until the version was written and deleted again.
            return bool(self._state_line.look(lambda store: epoch.versions.passed(store, number - 1)))
        self._pushed = epoch, number, value
        return True

    def wait_for_roster(self, timeout: Duration, more: int = 1) -> bool:
        epoch = self._epoch
        if epoch is None or not epoch.name:
            return self._is_filled(Keys(self._run_id).id, timeout, epoch)
        log = epoch.log
        if log.behind:  # nothing can be read until the next call of `roster` has voided the hole
            patience = min(timeout, self._hole_patience)
            return self._is_filled(epoch.keys.slot(log.cursor + 1), patience, epoch) or timeout >= self._hole_patience
        return self._is_filled(epoch.keys.slot(log.cursor + more), timeout, epoch)

    def hand_over(self, heirs: Sequence[str], timeout: Duration) -> bool:
        def ended(store: Store, epoch: _Epoch) -> tuple[str, set[str]]:
            own = set(epoch.log.own_keys)
            present = [item.key for item in epoch.log.read(store) if item.key not in own]
            if not present or not self._connector.hosts:  # the operation may be repeated in the heir's store
                return "", set()
            first = [key for key in heirs if key in present]
            epoch.versions.freeze(store, [*first, *(key for key in present if key not in first)])
            return self._successor(store, epoch, timeout), set(present)

        if self._mover is None or not self._connector.hosts:
            return False
        pointer, where = self._pointer, ""
        if pointer is not None:
            pointer.close()  # so that an heir can take its port
        try:
            where, present = self._use("handing over the store", ended)
        finally:
            if pointer is not None and pointer is self._pointer and not where:
                self._pointer = Pointer(self._mover, self._run_id, self._seal, pointer.where)
        if not where:
            return False
        get_logger().info("store handed over", endpoint=where)
        self._move_to(where)
        self._await(present, later(self._clock.now(), timeout))
        return True

    def close(self) -> None:
        """Unblock every call immediately: waits return False, and other calls raise RendezvousConnectionError. If the
        connections cannot be interrupted, waits return within 1 s, but other calls may hang."""
        if self._pointer is not None:
            self._pointer.close()
        for line in (self._main, self._state_line, self._roster_line):
            line.close()  # before the connector, so that no connection reports a store fault
        self._connector.close()

    def _counted_lead(self, store: Store, key: str, amount: int) -> int:
        """Add to the leader counter, and return its new value. If something else has overwritten the counter, a leader
        resets it. The reset is harmless, because nodes only check whether the counter changes."""
        try:
            return add(store, key, amount)
        except RendezvousStateError:
            if amount:
                store.set(key, b"%d" % amount)
            return amount

    def _is_filled(self, slot: str, timeout: Duration, epoch: _Epoch | None) -> bool:
        try:
            return self._roster_line.fetch(slot, timeout, lambda: self._epoch is epoch) is not None
        except EpochEnded:
            return True

    def _use(self, doing: str, operation: Callable[[Store, _Epoch], T], takes_part: bool = False) -> T:
        trail: dict[str, bool] = {}  # the addresses to which the operation was directed, and whether it reached them
        for _ in range(_MOST_MOVES):
            try:
                return self._main.use(doing, lambda store: self._in_epoch(store, operation, takes_part, trail))
            except StoreMoved as moved:
                trail[moved.where] = False
                self._move_to(moved.where)
        raise RendezvousConnectionError("the rendezvous store keeps moving from node to node")

    def _in_epoch(
        self, store: Store, operation: Callable[[Store, _Epoch], T], takes_part: bool, trail: dict[str, bool]
    ) -> T:
        """Perform the operation in the current epoch. If the nodes have to leave that epoch, begin a new one and try
        again. Raises StoreMoved if the store has moved to another address."""
        assert self._epoch is not None  # `_current_epoch` was called when the connection was made
        if self._observes and takes_part:
            self._observes, self._epoch = False, None
        epoch = self._current_epoch(store) if self._epoch is None or not self._epoch.name else self._epoch
        for _ in range(_MOST_EPOCHS):
            try:
                try:
                    return operation(store, epoch)
                except StoreMoving as moving:
                    if where := self._directed_to(store, epoch, moving.heirs, trail):
                        raise StoreMoved(where) from None
                    self._begin_epoch(store, epoch, copies=True)
                    raise EpochEnded from None
            except EpochEnded as error:
                if self._current_epoch(store) is epoch:
                    self._leave(store, epoch, str(error) or "a marker of another epoch")
            except ForeignWrite as error:
                if self._observes and self._current_epoch(store) is epoch:
                    raise
                self._leave(store, epoch, str(error))
            epoch = self._current_epoch(store)
        raise foreign("keys that only this job writes", "other writes")

    # -- where the store is, see `handover`

    def _directed_to(self, store: Store, epoch: _Epoch, heirs: Sequence[str], trail: dict[str, bool]) -> str:
        """Return the address to which a marker leads, or an empty string if the store stays here. Raises
        RendezvousConnectionError as long as the answer is unknown. A process that only reads also gets this error if
        the store stays and no node has begun a new epoch yet."""
        if self._has_ended(store, epoch):
            return ""
        try:
            where = self._successor(store, epoch, HEIR_PATIENCE * (1 + len(heirs)), heirs)
            if self._observes and not where:
                raise RendezvousConnectionError("its host had to keep it, and no node has used it since")
            if self._mover is None or not where or (where not in trail and not self._mover.connected_to(where)):
                return where
            trail.update((place, True) for place in trail if self._mover.connected_to(place))
            found, circles = f"no store answers at {where}", trail.get(where, True)
        except RendezvousConnectionError as error:
            found, circles = str(error), False
        if self._has_ended(store, epoch) or (circles and not self._observes) or self._is_left(store, epoch):
            return ""
        raise RendezvousConnectionError(f"the rendezvous store was to move, but {found}")

    def _has_ended(self, store: Store, epoch: _Epoch) -> bool:
        return epoch_named(peek(store, epoch.keys.id) or b"") != epoch.name

    def _is_left(self, store: Store, epoch: _Epoch) -> bool:
        """Return whether the store's host has not checked its pointer in this store for some time. An observer does not
        decide that."""
        looks, now = peek(store, epoch.keys.pointed), self._clock.now()
        if self._unanswered is None or self._unanswered[:2] != (epoch.name, looks):
            self._unanswered = epoch.name, looks, now
        return not self._observes and now - self._unanswered[2] >= POINTER_PATIENCE

    def _move_to(self, where: str) -> None:
        """Use the store at `where` from now on."""
        assert self._mover is not None
        if self._pointer is not None:
            self._pointer.close()
            self._pointer = None
        self._mover.moved(where)
        self._moved_to = where
        self._keep_pointer()
        self._is_handed_over = True
        self._main.renew()

    def _keep_pointer(self) -> None:
        """If this node serves the store at an address to which it has moved, keep a pointer to it at the endpoint."""
        mover, where = self._mover, self._moved_to
        if mover and where and not self._pointer and self._connector.hosts and mover.connected_to(where):
            self._pointer = Pointer(mover, self._run_id, self._seal, where)

    def _successor(self, store: Store, epoch: _Epoch, timeout: Duration, heirs: Sequence[str] = ()) -> str:
        """Return the store's new address, or an empty string if the store stays here. If it is this node's turn, the
        node takes over the store. If no node does so in time, the store's host records that the store stays, or any
        node does if the host has left. Raises RendezvousConnectionError if no node has taken the store over yet."""
        if self._mover is None:
            raise foreign("a store that never moves", "a marker of its move")
        place = None if self._observes else turn(heirs, epoch.log.own_keys, self._mover.listed)
        key = epoch.keys.moved
        value = None
        if place != 0:  # otherwise, this node is the first heir
            value = self._main.fetch(key, HEIR_PATIENCE * place if place else timeout)
        if value is None:  # a slow store may answer only after the wait has timed out
            value = peek(store, key)
        if value is None and place is not None:
            value = self._inherit(store, epoch)
        if value is None and (self._connector.hosts or self._is_left(store, epoch)):  # a late heir must not take over
            value = create(store, key, self._seal.sealed(key, STAYS.encode()))
        if value is None:
            raise RendezvousConnectionError("its host has left, and no other node hosts it yet")
        opened = self._seal.opened(key, value)
        where = "?" if opened is None else opened[:_LONGEST_PLACE].decode(errors="replace")
        if place is not None:
            self._mover.stop_serving(unless=where)
        if where == STAYS:
            return ""
        try:
            host, port = split_host_port(where, 0)
        except ValueError as error:
            raise foreign(f"an address as the value of {key!r}", str(error)) from error
        if not port:
            raise foreign(f"an address with a port as the value of {key!r}", repr(where))
        return joined_host_port(host, port)

    def _inherit(self, store: Store, epoch: _Epoch) -> bytes | None:
        """Serve the store in this process, and record its new address in the old store. Returns the record that the old
        store contains afterwards, or None if this process cannot serve the store."""
        assert self._mover is not None
        served = self._mover.serve()
        if served is None:
            return None
        where, connection = served
        forward = self._seal.sealed(epoch.keys.moved, where.encode())
        try:
            self._copy_state(epoch, connection.store, self._name_of_epoch(connection.store))
            found = create(store, epoch.keys.moved, forward)
        except StoreMoving:  # another process has written a pointer into the empty store
            self._mover.stop_serving()
            return None
        finally:
            connection.release()
        if found == forward:
            get_logger().info("store taken over", endpoint=where)
        return found

    def _give_way(self, store: Store, epoch: _Epoch) -> None:
        """Raise StoreMoving if other nodes have continued at the endpoint while this store was cut off from it. All
        nodes that use this store then join those nodes."""
        where = "" if self._pointer is None else self._pointer.overtaken_at
        if where and self._connector.hosts:
            create(store, epoch.keys.moved, self._seal.sealed(epoch.keys.moved, where.encode()))
            epoch.versions.freeze(store, [])
            raise StoreMoving(())

    def _await(self, present: set[str], until: Instant) -> None:
        """Wait until these nodes have announced themselves at the store's new address, but no longer than `until`."""
        left = until - self._clock.now()
        while left > 0 and not present <= {item.key for item in self.roster()}:
            epoch = self._epoch
            assert epoch is not None
            with contextlib.suppress(EpochEnded):
                self._main.fetch(epoch.keys.slot(epoch.log.cursor + 1), left)
            left = until - self._clock.now()

    def _reconnected(self, store: Store) -> None:
        """Renew the two connections that are used for waiting. The main connection has just been renewed, so these two
        may still be connected to an abandoned store."""
        self._current_epoch(store)
        self._keep_pointer()  # this node may have started a store in place of a lost one
        for line in (self._state_line, self._roster_line):
            line.renew()

    def _current_epoch(self, store: Store) -> _Epoch:
        name = self._name_of_epoch(store)
        before = self._epoch
        if before is None or before.name != name:
            epoch = self._known_as(name)
            if before is not None and self._is_handed_over:
                try:
                    before.log.move_to(epoch.log, store)
                except ForeignWrite:
                    self._begin_epoch(store, epoch)
                    raise
            elif self._mover is not None:  # the store stays, even if this node was about to take it over
                self._mover.stop_serving(unless=self._moved_to)
            self._is_handed_over = False
            self._epoch = epoch
            if before is not None:
                before.versions.leave(store)
                self._roster_line.renew()  # may be waiting for a slot of the old epoch
        assert self._epoch is not None
        return self._epoch

    def _known_as(self, name: str) -> _Epoch:
        keys = Keys(self._run_id, name)
        log = RosterLog(keys, self._seal, self._clock, self._hole_patience, self._observes)
        return _Epoch(keys, Versions(keys, self._seal, self._observes), log)

    def _leave(self, store: Store, epoch: _Epoch, found: str) -> None:
        """Make all nodes leave the epoch, because something else has overwritten its data."""
        if not self._observes:
            get_logger().warning("store overwritten", reason=found)
            self._begin_epoch(store, epoch)

    def _begin_epoch(self, store: Store, after: _Epoch, copies: bool = False) -> None:
        """Begin a new epoch unless another node has already done so. If `copies` is True, no node finds the new epoch
        before it has the newest state of this one, which is frozen."""
        standing, name = peek(store, after.keys.id), new_epoch()
        if standing is not None and epoch_named(standing) == after.name:
            if copies:
                self._copy_state(after, store, name.decode())
            if compare_set(store, after.keys.id, standing, name) != name and copies:
                unused = Keys(self._run_id, name.decode())
                delete(store, unused.state(1))
                delete(store, unused.head)

    def _copy_state(self, ended: _Epoch, store: Store, name: str) -> None:
        """Write the newest state of a frozen epoch to the epoch of this name, unless that one has a state."""
        with contextlib.suppress(ForeignStateError):  # the nodes then write back the state that they know
            standing = ended.versions.standing()
            if standing is not None:
                self._known_as(name).versions.write(store, standing[0], 0)

    def _name_of_epoch(self, store: Store) -> str:
        key = Keys(self._run_id).id
        if self._observes:
            return epoch_named(peek(store, key) or b"")
        return epoch_named(create(store, key, new_epoch()))

    def _check_epoch(self, store: Store) -> None:
        name = standing(store, Keys(self._run_id).id)  # None if the store is empty

        if self._epoch is not None and epoch_named(name or b"") != self._epoch.name:
            raise EpochEnded


def with_roster(
    backend: RendezvousBackend, clock: Clock, observes: bool = False, seal: Seal | None = None
) -> RosterBackend:
    """Return a backend that has a roster. If `backend` has none, the result is a `StoreBackend` on top of it. For
    `observes`, see `StoreBackend`. `seal` signs the values that the nodes write."""
    if not isinstance(backend, RosterBackend):
        from elastic_core.compat.state_store import StateConnector  # imported only for such backends

        backend = StoreBackend(StateConnector(backend, clock), "job", backend.name, clock, observes=observes)
    if seal is None or not seal.signs or backend.sign_with(seal):
        return backend
    return SignedBackend(backend, seal)
