"""Executes the protocol: it reads the document, carries out the step that `decide` chooses, and reads again. Only this
module writes the document."""

from __future__ import annotations

import random
import secrets
import threading
from functools import partial
from typing import TYPE_CHECKING

from elastic_etcd.client.errors import EtcdError, EtcdLeaseGone, EtcdUnreachable
from elastic_etcd.client.values import Compare, Delete, Field, Transaction

from elastic_core.plugin import (
    Backoff,
    Instant,
    RendezvousClosedError,
    RendezvousError,
    RendezvousTimeoutError,
    SystemClock,
    get_logger,
    later,
)
from elastic_etcd_legacy import steps
from elastic_etcd_legacy.decide import Attempt, Closed, Done, decide, makes_last_call, nodes_waiting
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

_RETRY: Duration = 0.2  # seconds until the next attempt when etcd cannot be reached
_CONTENTION = Backoff(first=0.02, longest=0.2)  # the longest random pause after consecutive conflicting writes
_LONGEST_NAME = 255
_LAST_ATTEMPTS = 3  # attempts to record that this node gives up or leaves


class Barrier:
    """Brings one node into rounds. Call `enter` from one thread at a time, and the other methods from any thread.

    Args:
        host: called when this node has rank 0; returns the address of the workers' store.
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
        check = partial(client.read, settings.keys.document, keys_only=True)
        self._leases = Leases(client, settings.keep_alive, settings.kept, self._cache.poke, check, self._clock)
        self._call: tuple[int, Instant] = (0, Instant(0.0))  # the version, and the end of this node's last call
        self._version = 0
        self._stopped = threading.Event()
        self._outside = threading.Event()
        self._outside.set()

    def enter(self) -> Done:
        """Block until this node is in a final round.

        Raises:
            RendezvousClosedError: the job was closed.
            RendezvousTimeoutError: no round with this node formed in time.
            RendezvousError: `stop` was called.
            EtcdUnreachable: etcd could not be reached when the timeout ended.
            EtcdRefused: etcd refused a request.
        """
        self._version = 0
        name = "".join(it if it.isprintable() else "?" for it in self._name[:_LONGEST_NAME])
        token = f"{name}/{secrets.token_hex(6)}"
        self._outside.clear()
        try:
            self._leases.end_alive()
            done = self._until_done(token, later(self._clock.now(), self._settings.timeout))
            self._version = done.version
            return done
        except BaseException:
            self._give_up(token)
            raise
        finally:
            self._outside.set()

    def close_rendezvous(self, patience: Duration = 10.0) -> None:
        """Close the rendezvous, so that no further rounds form.

        Raises:
            EtcdUnreachable: etcd could not be reached for `patience` seconds.
            EtcdClosed, EtcdRefused: the client was closed, or etcd refused the request.
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
        """Read the current state from etcd. Raises EtcdUnreachable, EtcdClosed or EtcdRefused."""
        return self._cache.refresh()

    def nodes_waiting(self) -> int:
        """Return how many nodes are waiting for a new round, as last reported by the watch. A broken round counts as
        one more waiting node. Raises EtcdUnreachable, EtcdClosed or EtcdRefused if the watch has failed."""
        self._cache.start()
        self._cache.check()
        return nodes_waiting(self._cache.view(), self._version, self._settings.bounds)

    @property
    def run_lease(self) -> int:
        """The ID of the lease for a round's store. Raises EtcdUnreachable, EtcdClosed or EtcdRefused."""
        return self._leases.run()

    def stop(self, patience: Duration) -> bool:
        """Leave the round and make `enter` raise an error. Waits up to `patience` seconds for `enter` to end. Returns
        whether the node has left and `enter` has ended. Idempotent."""
        self._stopped.set()
        self._cache.poke()
        left = self._outside.wait(patience) and self._leave()
        self._leases.close(end_run=left)
        self._cache.close()
        return left

    # -- joining

    def _until_done(self, token: str, deadline: Instant) -> Done:
        late = 0
        while True:
            changes = self._cache.changes  # read before `_stopped`, so that the wait below cannot miss `stop`
            if self._stopped.is_set():
                raise RendezvousError("the rendezvous handler was shut down while waiting for a round")
            try:
                self._cache.start()
                view = self._cache.view()
                if view.document is None and view.revision:
                    self._remove(view)
                    continue
                move = self._decided(view, token)
                if isinstance(move, Done):
                    return move
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
        """Return the time at which this node's last call ends, or None if this node does not make the last call. The
        call begins when the node first sees that it makes the last call."""
        if not makes_last_call(view, token, self._settings.bounds):
            return None
        if self._call[0] != view.version:
            self._call = (view.version, later(self._clock.now(), self._settings.last_call))
        return self._call[1]

    def _too_late(self, view: DocumentView) -> str:
        bounds, seconds = self._settings.bounds, self._settings.timeout
        found, advice = "no rendezvous exists", "start more nodes or raise the timeout (--rdzv-conf timeout=...)"
        if view.document is not None:
            joined = len(view.document.participants)
            found = f"the rendezvous is {view.document.status.value}, with {joined} node(s)"
            if joined >= bounds.least and self._settings.last_call >= seconds:
                advice = f"raise the timeout above last_call_timeout, which is {self._settings.last_call:g} s"
        return (
            f"no round of at least {bounds.least} nodes formed with this node within {seconds:g} s: {found}; {advice}"
        )

    # -- writing

    def _written(self, view: DocumentView, step: Step, reason: str = "") -> bool:
        """Write the step, and return whether the write succeeded. If the reply is lost, raises EtcdUnreachable. The
        next read then shows the outcome, because every step names its author."""
        effects, lease = step.transition.effects, 0
        try:
            lease = self._lease_for(step, view)
            done = self._client.transact(transaction(self._settings.keys, view, step, lease, self._alive(step)))
            if done.succeeded and Effect.RENEW in effects:
                self._client.renew(view.lease)
        except EtcdLeaseGone:
            self._leases.gone(lease)  # no effect on the document's lease, with which the document has expired
            self._cache.refresh()
            return False
        self._cache.refresh()
        if done.succeeded:
            get_logger().debug("rendezvous state written", reason=reason, step=step.transition.event.value)
        return done.succeeded

    def _remove(self, view: DocumentView) -> None:
        """Delete an invalid value under the document's key. Overwriting the value would keep its creation revision,
        which may be the version of an earlier rendezvous."""
        document = self._settings.keys.document
        unchanged = Compare(document, Field.MODIFIED, view.revision)
        self._client.transact(Transaction((unchanged,), (Delete(document),)))
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
        """Pause for a random time, so that nodes whose writes conflicted do not all retry together."""
        self._stopped.wait(random.uniform(0.0, _CONTENTION.pause(late + 1)))
        return late + 1

    # -- leaving

    def _give_up(self, token: str) -> None:
        """Remove this node from the document, so that the other nodes neither wait for it nor reserve a rank for it. If
        etcd cannot be reached, the node's lease will expire instead."""
        if self._cache.started:  # otherwise, this node has written nothing
            try:
                self._attempt(lambda view: steps.give_up(view.document, token))
            except (EtcdError, RendezvousError):
                pass
        self._leases.end_alive()

    def _leave(self) -> bool:
        """End this node's round. Returns whether the document is no longer attached to the node's long lease."""
        if not self._cache.started and self._leases.run_if_held is None:
            return True
        try:
            view = self._attempt(self._step_to_leave)
        except (EtcdError, RendezvousError):
            return False
        return view.lease != self._leases.run_if_held

    def _step_to_leave(self, view: DocumentView) -> Step | None:
        document = view.document
        if document is None or document.status is not Status.FINAL or view.version != self._version:
            return None
        return steps.break_(document)

    def _attempt(self, step_for: Callable[[DocumentView], Step | None]) -> DocumentView:
        self._cache.refresh()
        for _ in range(_LAST_ATTEMPTS):
            view = self._cache.view()
            step = step_for(view)
            if step is None or self._written(view, step, "this node leaves"):
                break
        return self._cache.view()
