"""The interpreter: it reads the document, carries out the step that `decide` chooses, and reads again. Every write to
etcd is in this file."""

from __future__ import annotations

import random
import secrets
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_etcd.client.errors import EtcdError, EtcdLeaseGone, EtcdUnreachable
from elastic_etcd.client.values import Compare, Delete, Field, Transaction

from elastic_core.plugin import (
    Instant,
    RendezvousClosedError,
    RendezvousError,
    RendezvousTimeoutError,
    SystemClock,
    get_logger,
    later,
)
from elastic_etcd_legacy import steps
from elastic_etcd_legacy.decide import Attempt, Closed, Done, begins_call, decide, nodes_waiting
from elastic_etcd_legacy.document import KeepAlive
from elastic_etcd_legacy.key_cache import RunCache
from elastic_etcd_legacy.leases import Leases
from elastic_etcd_legacy.steps import transaction
from elastic_etcd_legacy.table import Effect, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_etcd.client.client import EtcdClient

    from elastic_core.plugin import Clock, Duration
    from elastic_etcd_legacy.decide import Move, Wait
    from elastic_etcd_legacy.document import DocumentView
    from elastic_etcd_legacy.settings import LegacySettings
    from elastic_etcd_legacy.steps import Step

_RETRY: Duration = 0.2  # seconds after etcd could not be reached
_CONTENTION: Duration = 0.02  # after a write that came too late; times the number of such writes in a row, at random
_MOST_CONTENTION = 10
_LONGEST_NAME = 255
_LAST_ATTEMPTS = 3  # of telling that this node gives up, or goes


@dataclass(frozen=True)
class Joined:
    """A final round that this node is in, and where the workers' store is."""

    version: int
    rank: int
    world_size: int
    host: KeepAlive


class Barrier:
    """One node's way into rounds. `enter` from one thread at a time; the others from any.

    Args:
        host: called when this node has rank 0; returns where the workers' store will be.
    """

    def __init__(
        self,
        client: EtcdClient,
        settings: LegacySettings,
        host: Callable[[], KeepAlive],
        name: str = "node",
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._host = host
        self._name = name
        self._clock = clock or SystemClock()
        self._cache = RunCache(client, settings.keys, self._clock)
        self._leases = Leases(client, settings.keep_alive, settings.kept, self._cache.poke, self._clock)
        self._call: tuple[int, Instant] = (0, Instant(0.0))  # version and end of the last call that this node makes
        self._version = 0
        self._stopped = threading.Event()
        self._outside = threading.Event()
        self._outside.set()

    def enter(self) -> Joined:
        """Block until a round is final with this node in it.

        Raises:
            RendezvousClosedError, RendezvousTimeoutError; RendezvousError when it was stopped.
            EtcdUnreachable: it could not be reached when the time was over.
            EtcdRefused: etcd will not do it.
        """
        self._version = 0
        name = "".join(it if it.isprintable() else "?" for it in self._name[:_LONGEST_NAME])
        token = f"{name}/{secrets.token_hex(6)}"
        self._outside.clear()
        try:
            self._leases.end_alive()
            joined = self._until_done(token, later(self._clock.now(), self._settings.timeout))
            self._version = joined.version
            return joined
        except BaseException:
            self._give_up(token)
            raise
        finally:
            self._outside.set()

    def close_rendezvous(self, patience: Duration = 10.0) -> None:
        """Tell all nodes that no further rounds will form.

        Raises:
            EtcdUnreachable: it could not be reached for `patience` seconds.
            EtcdClosed, EtcdRefused.
        """
        late, until = 0, later(self._clock.now(), patience)
        while True:
            try:
                view = self._cache.refresh()
                step = steps.close(view.document)
                if step is None or self._written(view, step, "the job is over"):
                    return
                late = self._after_contention(late)
            except EtcdUnreachable:
                if self._clock.now() >= until:
                    raise
                self._stopped.wait(_RETRY)

    def look(self) -> DocumentView:
        """Read what etcd holds now. Raises EtcdUnreachable, EtcdClosed or EtcdRefused."""
        return self._cache.refresh()

    def nodes_waiting(self) -> int:
        """How many nodes wait for a new round, including those of a broken one, as last reported by the watch. Raises
        EtcdUnreachable, EtcdClosed or EtcdRefused if the watch has failed."""
        self._cache.start()
        self._cache.check()
        return nodes_waiting(self._cache.view(), self._version, self._settings.bounds)

    @property
    def run_lease(self) -> int:
        """What a round's store is attached to. Raises EtcdUnreachable, EtcdClosed or EtcdRefused."""
        return self._leases.run()

    def stop(self, patience: Duration) -> bool:
        """Leave the round and let `enter` return. Returns whether that was done within `patience` seconds.
        Idempotent."""
        self._stopped.set()
        self._cache.poke()
        told = self._outside.wait(patience) and self._left()
        self._leases.close(end_run=told)
        self._cache.close()
        return told

    # -- on the way in

    def _until_done(self, token: str, deadline: Instant) -> Joined:
        late = 0
        while True:
            self._check_stopped()
            try:
                self._cache.start()
                changes, view = self._cache.changes, self._cache.view()
                if view.document is None and view.revision:
                    self._remove(view)
                    continue
                move = self._decided(view, token)
                if isinstance(move, Done):
                    return Joined(move.version, move.rank, move.world_size, (view.alive or {})[0])
                if self._clock.now() >= deadline:
                    raise RendezvousTimeoutError(self._too_late(view))
                if not isinstance(move, Attempt):
                    self._cache.wait(changes, min(move.until or deadline, deadline) - self._clock.now())
                elif self._written(view, move.step, move.reason):
                    late = 0
                else:
                    late = self._after_contention(late)
            except EtcdUnreachable:
                if self._clock.now() >= deadline:
                    raise
                self._stopped.wait(_RETRY)

    def _decided(self, view: DocumentView, token: str) -> Attempt | Done | Wait:
        move: Move = decide(view, token, self._settings.bounds, self._call_ends(view, token), self._clock.now())
        if isinstance(move, Closed):
            raise RendezvousClosedError(f"the job {self._settings.run_id!r} was closed; no further rounds will form")
        return move

    def _call_ends(self, view: DocumentView, token: str) -> Instant | None:
        """Counted on this node's clock, from when it first sees that it makes the last call."""
        if not begins_call(view, token, self._settings.bounds):
            return None
        if self._call[0] != view.version:
            self._call = (view.version, later(self._clock.now(), self._settings.last_call))
        return self._call[1]

    def _too_late(self, view: DocumentView) -> str:
        bounds, seconds = self._settings.bounds, self._settings.timeout
        found = "no rendezvous"
        if view.document is not None:
            there = len(view.document.participants)
            found = f"one that is {view.document.status.value}, with {there} node(s), since which this one waits"
        return (
            f"expected a round of at least {bounds.least} nodes with this one within {seconds:g} s, found {found}; "
            "start the others, or give it more time (--rdzv-conf timeout=...)"
        )

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise RendezvousError("expected a handler in use, found that it was shut down while a round was awaited")

    # -- writing

    def _written(self, view: DocumentView, step: Step, reason: str = "") -> bool:
        """Whether the step stands now; what stands is in the cache afterwards. An answer that is lost raises
        EtcdUnreachable, and the next look shows whether the write landed: every step names its author."""
        effects, lease = step.transition.effects, 0
        try:
            lease = self._lease_for(step, view)
            done = self._client.transact(transaction(self._settings.keys, view, step, lease, self._alive(step)))
            if done.succeeded and Effect.RENEW in effects:
                self._client.renew(view.lease)
        except EtcdLeaseGone:
            self._leases.gone(lease)  # one of ours; else the document's, which is gone with it
            self._cache.refresh()
            return False
        self._cache.refresh()
        if done.succeeded:
            get_logger().debug("rendezvous state written", reason=reason, step=step.transition.event.value)
        return done.succeeded

    def _remove(self, view: DocumentView) -> None:
        """Remove what is stored in the document's place and is not a document. Overwriting it would not be enough: the
        revision that created it would name the new rendezvous, and may have named an earlier one."""
        document = self._settings.keys.document
        stands = Compare(document, Field.MODIFIED, view.revision)
        self._client.transact(Transaction((stands,), (Delete(document),)))
        self._cache.refresh()

    def _lease_for(self, step: Step, view: DocumentView) -> int:
        effects = step.transition.effects
        if Effect.LEASE_SETUP in effects:
            return self._client.grant(self._settings.setup).id
        if Effect.LEASE_FROZEN in effects:
            return self._client.grant(self._settings.confirm).id
        if Effect.LEASE_CALLER in effects:
            return self._leases.alive()
        if Effect.LEASE_RUN in effects:
            return self._leases.run()
        return view.lease

    def _alive(self, step: Step) -> tuple[KeepAlive, int] | None:
        if Effect.KEEP_ALIVE not in step.transition.effects or step.after is None:
            return None
        first = step.after.confirmed[-1] == step.after.participants[0]
        return (self._host() if first else KeepAlive()), self._leases.alive()

    def _after_contention(self, late: int) -> int:
        """Nodes that were refused together must not come again together."""
        self._stopped.wait(random.uniform(0.0, _CONTENTION * min(late + 1, _MOST_CONTENTION)))
        return late + 1

    # -- on the way out

    def _give_up(self, token: str) -> None:
        """Let other nodes stop waiting for this one and holding a place for it. If it cannot reach etcd, its lease
        ends."""
        if self._cache.started:  # else it has not written anything
            try:
                self._attempt(lambda view: steps.give_up(view.document, token))
            except (EtcdError, RendezvousError):
                pass
        self._leases.end_alive()

    def _left(self) -> bool:
        """End the round that this node is in. Whether nothing hangs on its long lease any more."""
        if not self._cache.started and self._leases.run_if_held is None:
            return True
        try:
            view = self._attempt(self._leaving)
        except (EtcdError, RendezvousError):
            return False
        return view.lease != self._leases.run_if_held

    def _leaving(self, view: DocumentView) -> Step | None:
        mine = view.document is not None and view.document.status is Status.FINAL and view.version == self._version
        return steps.break_(view.document) if mine and self._version else None

    def _attempt(self, step_for: Callable[[DocumentView], Step | None]) -> DocumentView:
        view = self._cache.refresh()
        for _ in range(_LAST_ATTEMPTS):
            step = step_for(view)
            if step is None or self._written(view, step, "this node goes"):
                break
            view = self._cache.refresh()
        return self._cache.view()
