"""A rendezvous backend over any key-value store that has compare_set, get, set, add, check and wait: versions of the
state, and a log of announcements. Push is the store's `wait`."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from elastic_core.clock import Instant, SystemClock, later
from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.interfaces.backend import EntryDroppedError, RosterBackend, SpoiltStateError
from elastic_core.log import get_logger
from elastic_core.rendezvous.handover import HEIR_PATIENCE, POINTER_PATIENCE, Pointer, turn
from elastic_core.rendezvous.roster_log import Announcer, RosterLog
from elastic_core.rendezvous.seal import HmacSeal
from elastic_core.rendezvous.store_connection import Line
from elastic_core.rendezvous.versions import (
    EpochLeft,
    Foreign,
    Forwarded,
    Keys,
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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.clock import Clock, Duration
    from elastic_core.interfaces.backend import Announced, Seal, Token
    from elastic_core.interfaces.store import Store
    from elastic_core.rendezvous.handover import StoreMover
    from elastic_core.rendezvous.store_connection import StoreConnector

T = TypeVar("T")
HOLE_PATIENCE: Duration = 2.0
_MOST_EPOCHS = 3  # that one operation begins
_MOST_MOVES = 3  # that one operation follows


@dataclass
class _Epoch:
    """What is known of one epoch of the store: of the time since it was last empty, or something else has spoilt what
    stood there."""

    keys: Keys
    versions: Versions
    announcer: Announcer
    log: RosterLog
    takes_over_at: Instant | None = None  # if the host offers the store; None: no offer, or not considered yet

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
        self._unconfirmed = ""  # address of a store that this node serves, until a forward to it is known to exist
        self._pushed: _Pushed | None = None
        self._state_line = Line(connector, aside=True, greet=self._greet_aside)
        self._roster_line = Line(connector, aside=True, greet=self._greet_aside)
        self._main = Line(connector, aside=False, greet=self._arrived)

    @property
    def name(self) -> str:
        return self._name

    @property
    def hosts_store(self) -> bool:
        return self._connector.hosts and not self._unconfirmed

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
            if pushed is None or pushed.epoch is not epoch or not epoch.versions.adopt(pushed.number, pushed.value):
                epoch.versions.newest(store)
            self._consider_offer(store, epoch)
            return epoch.versions.standing()

        return self._use("reading the state", read)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Version, bool] | None:
        def write(store: Store, _: _Epoch) -> tuple[bytes, Version, bool] | None:
            epoch = self._greet(store)  # a token of before must write nothing in a store that began anew
            if token is None or (isinstance(token, Version) and token.epoch == epoch.name):
                after = epoch.versions.offer_before_state if token is None else token.number
                return epoch.versions.write(store, state, after)
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
            self._give_way(store, epoch)
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
        try:
            if epoch is None or not epoch.name:
                return self._state_line.fetch(Keys(self._run_id).id, timeout) is not None
            number = 1 + (epoch.versions.offer_before_state if token is None else token.number)
            due = epoch.takes_over_at
            if due is None and epoch.versions.heirs:
                return True
            if due is not None and (timeout := min(timeout, due - self._clock.now())) <= 0:
                return True
            value = self._state_line.fetch(epoch.keys.state(number), timeout, lambda: self._epoch is epoch)
        except EpochLeft:
            return True
        if value is None:
            return (due is not None and self._clock.now() >= due) or self._has_passed(epoch, number - 1)
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
        present: set[str] = set()
        until = later(self._clock.now(), timeout)

        def offered(store: Store, epoch: _Epoch) -> bool:
            if not self.hosts_store:  # the operation was forwarded: an heir serves the store now
                return True
            own = set(epoch.announcer.keys)
            others = [item.key for item in epoch.log.read(store) if item.key not in own]
            first = [key for key in heirs if key in others]
            present.update(others)
            with contextlib.suppress(SpoiltStateError):  # nothing to hand over
                if others and self._clock.now() < until:
                    epoch.versions.offer(store, [*first, *(key for key in others if key not in first)])
                    self._await_forward(store, epoch, until)
            return False

        if self._mover is None or not self.hosts_store:
            return False
        pointer, moved = self._pointer, False
        if pointer is not None:
            pointer.close()  # before an heir takes the place that it is for
        try:
            moved = self._use("handing over the store", offered)
        finally:
            if pointer is not None and self._pointer is pointer:
                self._pointer = pointer.anew()
        if moved:
            self._await(present, later(self._clock.now(), timeout))
        return moved

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
        followed: dict[str, bool] = {}
        may_serve = self._unconfirmed
        for _ in range(_MOST_MOVES):
            try:
                return self._use_here(doing, operation, takes_part, followed)
            except Forwarded as forward:
                followed[forward.where] = False
                self._go(forward.where)
            except RendezvousConnectionError:
                if may_serve:
                    self._serve_no_more()
                raise
        raise RendezvousConnectionError("expected the store where its nodes say, found that it moves on and on")

    def _use_here(
        self, doing: str, operation: Callable[[Store, _Epoch], T], takes_part: bool, followed: dict[str, bool]
    ) -> T:
        def with_epoch(store: Store) -> T:
            assert self._epoch is not None  # `_greet` came first
            if self._observes and takes_part:
                self._observes, self._epoch = False, None  # what it has seen it looks at again
            epoch = self._greet(store) if self._epoch is None or not self._epoch.name else self._epoch
            for _ in range(_MOST_EPOCHS):
                try:
                    return operation(store, epoch)
                except Forwarded as forward:
                    if self._mover is None:
                        self._leave(store, epoch, "found a forward, but this store cannot move")
                    elif self._should_follow(self._mover, store, epoch, forward.where, followed):
                        raise
                    else:
                        self._begin_epoch(store, epoch)
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

    def _should_follow(
        self, mover: StoreMover, store: Store, epoch: _Epoch, where: str, followed: dict[str, bool]
    ) -> bool:
        """Whether to follow this forward. False if the nodes have left this epoch, or if the forward leads back here
        or to a host that has stopped checking this store. Raises RendezvousConnectionError while that is undecided,
        and always for an observer, which begins no epoch.

        Args:
            followed: for each address that this operation was forwarded to, whether it reached a store there.
        """
        if self._has_ended(store, epoch):
            return False
        if where not in followed and not mover.leads_to(where):
            return True
        followed.update((place, True) for place in followed if mover.leads_to(place))
        if not self._observes and (followed.get(where, True) or self._is_left(store, epoch)):
            return False
        raise RendezvousConnectionError(f"the store has moved to {where}, but no store answers there")

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
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            pointer.close()
        hosted = self.hosts_store
        if where != self._unconfirmed:
            self._serve_no_more()
        self._mover.moved(where)
        if self._connector.hosts:
            get_logger().info("store taken over", endpoint=where)
            self._pointer = Pointer(self._mover, self._run_id, self._seal, where)
        elif hosted:
            get_logger().info("store handed over", endpoint=where)
        self._is_handed_over, self._unconfirmed = True, ""
        self._main.renew()

    def _consider_offer(self, store: Store, epoch: _Epoch) -> None:
        """Take the store over, if its host offers it and this node's turn has come. Raises Forwarded once an heir,
        this node or another, has written a forward."""
        if epoch.takes_over_at is None and epoch.versions.heirs:
            mover = None if self._observes else self._mover
            place = None if mover is None else turn(epoch.versions.heirs, epoch.announcer.keys, mover.listed)
            epoch.takes_over_at = later(self._clock.now(), math.inf if place is None else HEIR_PATIENCE * place)
        if epoch.takes_over_at is not None and self._clock.now() >= epoch.takes_over_at:
            self._take_over(store, epoch)

    def _take_over(self, store: Store, epoch: _Epoch) -> None:
        assert self._mover is not None
        served = self._mover.serve()
        if served is None:
            epoch.takes_over_at = Instant(math.inf)
            return
        where, connection = served
        self._unconfirmed, is_forwarded = where, False
        try:
            begun = self._known_as(epoch_named(create(connection.store, Keys(self._run_id).id, new_epoch())))
            while True:
                self._copy(epoch, begun, connection.store)
                is_forwarded = True  # even if the answer is lost
                if epoch.versions.forward(store, where):
                    raise Forwarded(where)
                is_forwarded = False
                epoch.versions.newest(store)
        except Forwarded as forward:
            is_forwarded = forward.where == where
            raise
        finally:
            connection.release()
            if not is_forwarded:
                self._serve_no_more()

    def _serve_no_more(self) -> None:
        """Stop the new store, unless a forward leads to it: another heir was first, or the old store has failed."""
        if self._unconfirmed:
            assert self._mover is not None
            self._mover.serve_no_more()
            self._unconfirmed = ""

    def _copy(self, epoch: _Epoch, begun: _Epoch, store: Store) -> None:
        """Copy the state into the new store. If newcomers have written a state there, it is replaced; their entries
        stay."""
        with contextlib.suppress(SpoiltStateError):  # the nodes write again what they know
            found, written = epoch.versions.standing(), False
            while found is not None and not written:
                answer = begun.versions.write(store, found[0], begun.versions.number)
                written = answer is not None and answer[2]

    def _await_forward(self, store: Store, epoch: _Epoch, until: Instant) -> None:
        """Wait until `until`. Raises Forwarded as soon as an heir has written a forward."""
        next_version = epoch.keys.state(epoch.versions.number + 1)
        while (left := until - self._clock.now()) > 0 and self._main.fetch(next_version, left) is not None:
            epoch.versions.newest(store)
            next_version = epoch.keys.state(epoch.versions.number + 1)

    def _give_way(self, store: Store, epoch: _Epoch) -> None:
        """If this store was cut off and nodes have re-formed at the endpoint, forward this store's nodes to there.
        Raises Forwarded once the forward is written."""
        where = "" if self._pointer is None else self._pointer.overtaken_at
        if where and self.hosts_store:
            epoch.versions.newest(store)
            if epoch.versions.forward(store, where):  # if not, the next heartbeat tries again
                raise Forwarded(where)

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
                    before.announcer.move_to(epoch.announcer, store)
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

    def _name_of_epoch(self, store: Store) -> str:
        key = Keys(self._run_id).id
        if self._observes:
            return epoch_named(peek(store, key) or b"")
        return epoch_named(create(store, key, new_epoch()))

    def _greet_aside(self, store: Store) -> None:
        name = standing(store, Keys(self._run_id).id)  # none where it began anew, or is observed before it begins
        if self._epoch is not None and epoch_named(name or b"") != self._epoch.name:
            raise EpochLeft
