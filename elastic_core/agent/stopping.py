"""Stops workers: sends each worker a signal, waits for the grace period, sends SIGKILL, waits for a limited time, and
finally gives up. All workers are stopped in this way.

A worker's child processes (a DataLoader, a Manager, a pool) get no signal while the worker is running, because the
worker may need them to save a checkpoint.

Before the signal, the workers of a round may get time to save, all after the same step. For the workers' side, see
`elastic_core.stop`. Each agent asks its workers to stop. From then on, every worker blocks in its next call to
`should_stop`. The highest step that a node's workers have announced is therefore almost final: only a worker between
two calls can still announce one more step. The agents exchange these steps in the round's store. The agent with the
lowest rank publishes the first step that is higher than all of them."""

from __future__ import annotations

import signal
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from elastic_core.agent.reporter import Progress
from elastic_core.clock import Instant, earliest, later
from elastic_core.errors import UnkillableWorkersError
from elastic_core.log import get_logger
from elastic_core.stop import GREATEST_STEP
from elastic_core.support.bounded import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from elastic_core.agent.event_queue import EventQueue
    from elastic_core.clock import Clock, Duration
    from elastic_core.interfaces.backend import Store
    from elastic_core.interfaces.workers import Leftover, WorkerExit, WorkerProcesses

# Seconds that helpers of ended workers (such as multiprocessing's resource tracker) get to exit on their own. After a
# failure, they delay the restart; at the end of the job, they may take longer.
AFTERGLOW: Duration = 0.3
LAST_AFTERGLOW: Duration = 2.0
_HELPERS_GRACE: Duration = 2.0  # seconds for helpers to clean up after the workers that they served were killed
_CONSOLE_PATIENCE: Duration = 30.0  # seconds for which the console may stall before the rest of the output is dropped
_HURRIED_PATIENCE: Duration = 2.0  # the same limit after a signal has asked the agent to leave
_LOOK_AT_STORE: Duration = 0.5  # `stop_by` depends on the store's last response, and no event reports a change
# Between checks for what no event reports: a worker that calls `stopped`, a process that forks before SIGKILL, and on
# some platforms the end of a process that is not a child.
_LOOK_AGAIN: Duration = 0.05
_OWN, _AGREED = "elastic/stop/{rank}", "elastic/stop/at"
_NO_STEP = -1
_LONGEST = 20  # maximum number of characters of a step in the store
_SETTLE: Duration = 0.001  # time until a step that a worker has written is visible on all processors
_NOTABLE: Duration = 1.0  # seconds by which a deadline must move to be announced again


class GroupStop:
    """Ends all processes of a round. All waiting is done in the agent's event queue, so that a signal can end a wait
    early.

    Args:
        kill_timeout: see `ProcessAgent`.
        stop_by: called repeatedly; returns when the other nodes may continue without this one, or None for no limit.
        deadline: called repeatedly; returns when the user or a notice ends the grace period, or None for no limit.
        exited: called for each worker that has ended.
    """

    def __init__(
        self,
        processes: WorkerProcesses,
        events: EventQueue,
        clock: Clock,
        kill_timeout: Duration,
        stop_by: Callable[[], Instant | None] = lambda: None,
        deadline: Callable[[], Instant | None] = lambda: None,
        exited: Callable[[WorkerExit], None] = lambda ended: None,
    ) -> None:
        self._processes = processes
        self._exited = exited
        self._stop_by = stop_by
        self._deadline = deadline
        self._events = events
        self._clock = clock
        self._kill_timeout = kill_timeout

    def stop(
        self,
        signum: signal.Signals,
        grace: Duration,
        afterglow: Duration = AFTERGLOW,
        saving: CommonStep | None = None,
    ) -> None:
        """End the processes, and then read the rest of their output.

        If no workers are running, only the processes that they left behind must be ended. These get `afterglow` seconds
        to exit on their own. If `saving` is given, workers that call `should_stop` get up to half of the grace period
        to save before the first signal.

        Raises:
            UnkillableWorkersError: a process has survived SIGKILL.
        """
        try:
            left = self._left_behind(afterglow)
            if left or self._processes.running():
                self._announce(left, signum, grace)
                begun = self._clock.now()
                self._end_processes(signum, grace, saving)
                get_logger().info("workers stopped", seconds=round(self._clock.now() - begun, 3))
            self._deliver_output()
        finally:
            self.reap()
            self._processes.finish()

    def _left_behind(self, afterglow: Duration) -> list[Leftover]:
        """Return the processes that must be ended. While workers are running, these are all processes. Otherwise, the
        remaining processes first get time to exit on their own, which a signal ends early."""
        signals = len(self._events.signals)
        until = later(self._clock.now(), afterglow)
        while (left := self._processes.leftovers()) and not self._processes.running():
            if self._clock.now() >= until or len(self._events.signals) != signals:
                break
            self._wait_for_ends(until)
        return left

    def _announce(self, left: list[Leftover], signum: signal.Signals, grace: Duration) -> None:
        log = get_logger()
        running = self._processes.running()
        if running:
            log.info("stopping workers", local_ranks=running, signal=signum.name, grace=round(grace, 3))
        else:
            commands = [f"{process.pid} {process.command}" for process in left]
            log.warning("leftover processes", reason="the workers ended and left these behind", processes=commands)

    def _end_processes(self, signum: signal.Signals, grace: Duration, saving: CommonStep | None) -> None:
        begun = self._clock.now()
        until = later(begun, grace)
        if saving and not self._processes.failures() and saving.begin(until):
            self._save(saving, later(begun, grace / 2))
            if not self._unfinished():
                return
        progress = Progress(
            self._clock.now(),
            "workers to stop",
            lambda seconds: {"local_ranks": self._processes.running(), "seconds": seconds, "grace": grace},
        )
        for_helpers = min(_HELPERS_GRACE, self._kill_timeout / 2)
        kill_all = partial(self._processes.send_signal, signal.SIGKILL)
        ended = (
            self._ask(signum, until, progress)
            or self._kill(self._processes.kill_workers, for_helpers, progress, again=_LOOK_AGAIN)
            or self._kill(kill_all, self._kill_timeout - for_helpers, progress)
        )
        if not ended:
            self._give_up()

    def _save(self, saving: CommonStep, until: Instant) -> None:
        """Wait until all workers have saved or exited, `until` is reached, or the grace period is cut short."""
        while True:
            now, due = self._clock.now(), earliest(self._stop_by(), self._deadline())
            cut_short = self._events.urged or (due is not None and now >= due)
            if saving.is_over(due) or cut_short or now >= until:
                saving.end()
                return
            self._wait_for_ends(until, later(now, _LOOK_AGAIN))

    def _ask(self, signum: signal.Signals, until: Instant, progress: Progress) -> bool:
        """Ask the processes to end. Returns whether all have ended by `until` or when the grace period is cut short."""
        self._processes.ask(signum)
        self._processes.send_signal(signal.SIGCONT)  # a suspended process cannot react to the request to end
        while self._unfinished():
            now, due, deadline = self._clock.now(), self._stop_by(), self._deadline()
            if now >= until or (deadline is not None and now >= deadline) or self._events.urged:
                return False
            if due is not None and now >= due:
                get_logger().warning("grace cut short", reason="the other nodes may continue without this one")
                return False
            # SIGTERM may have arrived since, and workers may have left processes behind.
            self._processes.ask(signal.SIGTERM if self._events.request is signal.SIGTERM else signum)
            look = earliest(deadline, None if due is None else min(due, later(now, _LOOK_AT_STORE)))
            self._wait_for_ends(until, progress.look(now), look)
        return True

    def _kill(
        self, kill: Callable[[], None], patience: Duration, progress: Progress, again: Duration | None = None
    ) -> bool:
        """Call `kill`, and repeat it after each event and every `again` seconds. Returns whether all processes have
        ended before `patience` seconds have passed."""
        now = self._clock.now()
        until = later(now, patience)
        while self._unfinished():
            kill()
            self._wait_for_ends(until, progress.look(now), None if again is None else later(now, again))
            now = self._clock.now()
            if now >= until:
                return False
        return True

    def reap(self) -> None:
        """Record the workers that have ended."""
        for ended in self._processes.reap():
            self._exited(ended)

    def _unfinished(self) -> bool:
        # With many workers, the process table is long, so it is read only after all workers have ended.
        return bool(self._processes.running() or self._processes.leftovers())

    def _wait_for_ends(self, *until: Instant | None) -> None:
        fds = self._processes.sentinels() or self._processes.leftover_sentinels()
        self._events.wait(fds, *until, None if fds else later(self._clock.now(), _LOOK_AGAIN))
        self._events.pop_expired()  # ignore timers, so that a stopping worker gets its whole grace period
        self.reap()

    def _give_up(self) -> None:
        """Raise UnkillableWorkersError, unless the last process has just ended."""
        left = self._processes.leftovers()
        for p in left:
            where = p.waits_in or "unknown"
            get_logger().error("process would not die", pid=p.pid, state=p.state, waits_in=where, command=p.command)
        if left:
            names = "; ".join(f"{p.pid} ({p.command}) in state {p.state}, in {p.waits_in or 'unknown'}" for p in left)
            raise UnkillableWorkersError(
                f"{len(left)} process(es) still exist {self._kill_timeout:g} s after SIGKILL: {names}. State D means "
                "that the kernel is waiting for a device or a file system: look at the kernel's log (dmesg); the "
                "process ends when that wait ends, or when the machine reboots"
            )

    def _deliver_output(self) -> None:
        """Wait until all output has been delivered, the console has stalled for too long, or a signal arrives."""
        done = self._processes.drain()
        signals = len(self._events.signals)
        patience = _HURRIED_PATIENCE if signals else _CONSOLE_PATIENCE
        delivered, deadline = -1, self._clock.now()
        readable: Collection[int] = ()
        progress = Progress(deadline, "the console to accept the workers' output")
        while done is not None and done not in readable and len(self._events.signals) == signals:
            now = self._clock.now()
            if delivered != self._processes.delivered():
                delivered, deadline = self._processes.delivered(), later(now, patience)
            elif now >= deadline:
                return
            readable = self._events.wait([done], deadline, progress.look(now))


def agree(
    store: Store, rank: int, ranks: Sequence[int], highest: int, *, multiple: int, patience: Duration
) -> int | None:
    """Return the step at which all workers of the round stop.

    Args:
        store: the round's store, which is not used if there is only one rank.
        ranks: the group ranks of the participating nodes, the same on every node. The first node gathers the steps.
        highest: the highest step that a worker of this node has announced, or -1 if none has. If it is -1, there is no
            common step, and the node does not wait for other nodes.
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
        self._call: BackgroundCall[int | None] | None = None  # while the workers wait for its result
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
        if self._call is not None and self._call.wait(0):
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
        if self._call is not None:
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
        self._call, self._step = None, step
        self._processes.stop_at(step)
