"""Lets all workers of a round stop after the same step. For the workers' side, see `elastic_core.stop`.

Each agent asks its workers to stop. From then on, every worker blocks in its next call to `should_stop`. The highest
step that a node's workers have announced is therefore almost final: only a worker between two calls can still announce
one more step.

The agents exchange these steps in the round's store. The agent with the lowest rank publishes the first step that is
higher than all of them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from elastic_core.clock import Instant, later
from elastic_core.log import get_logger
from elastic_core.stop import GREATEST_STEP
from elastic_core.support.bounded import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.agent.event_queue import EventQueue
    from elastic_core.clock import Clock, Duration
    from elastic_core.interfaces.backend import Store
    from elastic_core.interfaces.workers import WorkerProcesses

_OWN, _AGREED = "elastic/stop/{rank}", "elastic/stop/at"
_NO_STEP = -1
_LONGEST = 20  # maximum number of characters of a step in the store
_SETTLE: Duration = 0.001  # time until a step that a worker has written is visible on all processors
_NOTABLE: Duration = 1.0  # seconds by which a deadline must move to be announced again


def agree(
    store: Store, rank: int, ranks: Sequence[int], highest: int, *, multiple: int, patience: Duration
) -> int | None:
    """Return the step at which all workers of the round stop.

    Args:
        store: the round's store, which is not used if there is only one rank.
        ranks: the group ranks of the participating nodes, the same on every node. The first node gathers the steps.
        highest: the highest step that a worker of this node has announced, or -1 if none has. If it is -1, there is no
            common step, and the node does not wait for the others.
        multiple: the returned step must be a multiple of this number.
        patience: seconds to wait for the other nodes.

    Returns None if a node does not answer in time or has announced no step. Raises the store's errors.
    """
    if len(ranks) == 1:
        return _following(highest, multiple) if highest >= 0 else None
    limit = timedelta(seconds=patience)
    step: int | None = None
    if rank != ranks[0]:
        store.set(_OWN.format(rank=rank), str(highest))
        if highest < 0:
            return None
        try:
            store.wait([_AGREED], limit)
        except Exception:
            if _decided(store, None) is None:
                raise
        return _decided(store, None)
    try:
        if highest >= 0:
            keys = [_OWN.format(rank=other) for other in ranks[1:]]
            store.wait(keys, limit)
            steps = [highest, *(int(store.get(key)[:_LONGEST]) for key in keys)]
            step = None if min(steps) < 0 else _following(max(steps), multiple)
    finally:
        decided = _decided(store, step)
    return decided


def _decided(store: Store, step: int | None) -> int | None:
    """Propose a step, and return the one that the store keeps, which is the first. A node that has waited too long
    proposes that there is none, and the first rank may propose one at the same time."""
    number = int(store.compare_set(_AGREED, "", str(_NO_STEP if step is None else step))[:_LONGEST])
    return number if number >= 0 else None


def _following(highest: int, multiple: int) -> int | None:
    """Return the first multiple of `multiple` above `highest`, or None if that multiple does not fit into 64 bits."""
    step = (highest // multiple + 1) * multiple
    return step if 0 < step <= GREATEST_STEP else None


class CommonStep:
    """The first part of a stop, in which the workers save. Only the agent's thread may call the methods.

    Args:
        settle: takes this node's highest step, and returns the step that the nodes have agreed on (see `agree`).
        reason: why the workers must stop.
        report: called with the agreed step, the beginning of the stop, the deadline, the local ranks that have saved,
            and those that have not. Called again whenever one of these changes.
    """

    def __init__(
        self,
        processes: WorkerProcesses,
        events: EventQueue,
        clock: Clock,
        settle: Callable[[int], int | None],
        reason: str,
        report: Callable[[int, Instant, Instant, list[int], list[int]], object],
    ) -> None:
        self._processes = processes
        self._events = events
        self._clock = clock
        self._settle = settle
        self._reason = reason
        self._report = report
        self._since = self._until = Instant(0.0)
        self._workers: list[int] = []
        self._call: BackgroundCall[int | None] | None = None
        self._answered = False
        self._step: int | None = None
        self._reported: tuple[object, ...] = ()  # the arguments of the last call to `report`

    def begin(self, until: Instant) -> bool:
        """Ask the workers to stop, and start to agree on a step. Returns false if none has called `should_stop`."""
        self._since, self._until, self._workers = self._clock.now(), until, self._processes.running()
        self._processes.ask_to_stop(until, self._reason)
        self._events.wait((), later(self._clock.now(), _SETTLE))
        highest = self._processes.announced_step()
        try:
            self._call = BackgroundCall(lambda: self._settle(highest), "rendezvous-step", self._events.wake)
        except RuntimeError:  # no thread can be started
            highest = _NO_STEP
        if highest < 0:
            self._answer(None)
        return highest >= 0

    def is_over(self, due: Instant | None) -> bool:
        """Pass the agreed step to the workers once it is known. Returns true if every worker has saved or exited, or if
        there is no common step.

        `due` is when the workers will be killed, if that is known. If it is earlier than announced, the workers are
        notified."""
        if due is not None and due < self._until - _NOTABLE:
            self._until = due
            self._processes.ask_to_stop(due, self._reason)
        if not self._answered and self._call is not None and self._call.wait(0):
            step, reason = None, "another node did not answer in time, or its workers do not call should_stop"
            try:
                step = self._call.result()
            except Exception as error:  # noqa: BLE001 - the store may be a plugin's
                reason = str(error)
            self._answer(step)
            if step is None:
                get_logger().warning("no common step", reason=reason)
                return True
            get_logger().info("workers stop after the same step", step=step)
        return not self._unsaved()[0]

    def end(self) -> None:
        """Release workers that are still waiting for the step, and log the workers that have not stopped after it."""
        if not self._answered:
            self._answer(None)
        if self._step is None:
            return
        running, failed = self._unsaved()
        if left := sorted((*running, *failed)):
            reasons = "; ".join(f"local rank {rank}: {reason}" for rank, reason in sorted(failed.items()))
            more = {"failed": reasons} if failed else {}
            get_logger().warning("workers have not saved", local_ranks=left, step=self._step, **more)

    def _unsaved(self) -> tuple[list[int], dict[int, str]]:
        """Return the workers that may still save, and the reason for each failed worker's failure by local rank."""
        saved = self._processes.saved()
        running = [rank for rank in self._processes.running() if rank not in saved]
        failed = {failure.local_rank: failure.reason for failure in self._processes.failures().values()}
        if self._step is not None:
            unsaved = sorted((*running, *failed))
            saved = [rank for rank in self._workers if rank not in unsaved]
            status = (self._step, self._since, self._until, saved, unsaved)
            if self._reported != status:
                self._reported = status
                self._report(*status)
        return running, failed

    def _answer(self, step: int | None) -> None:
        self._answered, self._step = True, step
        self._processes.stop_at(step)
