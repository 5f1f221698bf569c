"""Fakes for agent tests: workers without processes, a scripted round handler and a recording observer."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

from elastic_core.builtin import MemoryStore
from elastic_core.errors import ProcessFailure
from elastic_core.interfaces.handler import Outcome, RendezvousInfo, RendezvousStoreInfo, RoundHandler
from elastic_core.interfaces.node import Member, Round
from elastic_core.interfaces.observer import PhaseChanged, WorkerExited
from elastic_core.interfaces.workers import Leftover, WorkerExit, WorkerSample

_FIRST_PID = 1000
_FIRST_PORT = 29_000


class FakeWorkers:
    """See `interfaces.workers.WorkerProcesses`.

    Args:
        on_start: called with each round's plan and this object once its workers run; the place to script exits.
        ignore_signals: local ranks that ignore every signal but SIGKILL.
        unkillable: local ranks that ignore SIGKILL too, like a process in uninterruptible sleep.
        reluctant: local ranks that do not exit at the step at which they should stop.
        fails_to_save: local ranks that exit with 1 at that step.

    Attributes:
        steps: the steps that workers have announced, by local rank, set by the test.
        acknowledged: the local ranks that have saved, set by the test.
        stops: the steps at which the workers were told to stop, in order.
        plans: the plans of all rounds, in order.
        signals: every signal sent, in order.
        killed: the reasons of all kills, in order.
        done: the results of `samples` by local rank, set by the test; other workers have made no progress.
    """

    prepare = None

    def __init__(self, on_start=None, ignore_signals=(), unkillable=(), reluctant=(), fails_to_save=()):
        self._on_start = on_start
        self._ignore_signals = {*ignore_signals, *unkillable}
        self._unkillable = set(unkillable)
        self._reluctant = set(reluctant)
        self._fails_to_save = set(fails_to_save)
        self._lock = threading.RLock()
        self._bell_reader, self._bell_writer = os.pipe()
        self._running = {}
        self._fresh = []
        self._ended = []
        self._failures = {}
        self._values = {}
        self._reasons = {}
        self._asked = set()
        self.plans = []
        self.signals = []
        self.steps = {}
        self.acknowledged = []
        self.stops = []
        self._closed = False
        self.killed = []
        self.done = {}

    def end(self, local_rank, exitcode):
        """Let a worker exit by itself. Thread-safe. Raises ValueError if it is not running."""
        with self._lock:
            if local_rank not in self._running:
                raise ValueError(f"expected one of the running workers {self.running()}, found {local_rank}")
            self._end(local_rank, exitcode, obeyed=False)

    def preparation(self, plan):
        return self.prepare

    def start(self, plan):
        with self._lock:
            base = _FIRST_PID * (len(self.plans) + 1)
            self.plans.append(plan)
            self._ended.clear()
            self._reasons.clear()
            self._asked.clear()
            self._running = {ranks.local: base + ranks.local for ranks in plan.ranks}
            pids = dict(self._running)
        if self._on_start:
            self._on_start(plan, self)
        return pids

    def sentinels(self):
        with self._lock:
            return [self._bell_reader] if self._running or self._fresh else []

    def reap(self):
        with self._lock:
            if self._fresh:
                os.read(self._bell_reader, 4096)
            fresh, self._fresh = self._fresh, []
            return fresh

    def running(self):
        with self._lock:
            return sorted(self._running)

    def ask_to_stop(self, until, reason):
        pass

    def announced_step(self):
        return max(self.steps.values(), default=-1)

    def stop_at(self, step):
        with self._lock:
            self.stops.append(step)
            for rank in [] if step is None else [rank for rank in self._running if rank not in self._reluctant]:
                fails = rank in self._fails_to_save
                self._end(rank, int(fails), obeyed=not fails)

    def saved(self):
        return self.acknowledged

    def ask(self, signum):
        if signum not in self._asked:
            self._asked.add(signum)
            self.send_signal(signum)

    def kill_workers(self):
        self.send_signal(signal.SIGKILL)

    def send_signal(self, signum):
        with self._lock:
            self.signals.append(signum)
            if signum == signal.SIGCONT:
                return
            spared = self._unkillable if signum == signal.SIGKILL else self._ignore_signals
            for rank in [rank for rank in self._running if rank not in spared]:
                self._end(rank, -signum, obeyed=True)

    def samples(self):
        with self._lock:
            return [
                replace(self.done.get(rank, WorkerSample(rank, pid)), pid=pid) for rank, pid in self._running.items()
            ]

    def kill(self, pid, reason, ask=True):
        with self._lock:
            rank = next((rank for rank, own in self._running.items() if own == pid), None)
            if rank is None or rank in self._reasons:
                return None
            self.killed.append(reason)
            self._reasons[rank] = reason
            if rank in self._unkillable:
                self._ended.append((WorkerExit(rank, pid, -signal.SIGKILL), False))
            else:
                self._end(rank, -signal.SIGKILL, obeyed=False)
            return rank

    def leftovers(self):
        with self._lock:
            return [
                Leftover(pid, "D" if rank in self._unkillable else "S", f"fake worker {rank}", "fake_wait")
                for rank, pid in self._running.items()
            ]

    def leftover_sentinels(self):
        return []

    def drain(self):
        return None

    def delivered(self):
        return 0

    def finish(self):
        with self._lock:
            if not self._running and not self._ended:
                return  # finished already, or never started: keep the last results
            world = {ranks.local: ranks.world for ranks in self.plans[-1].ranks}
            self._failures = self._explain(world)
            self._values = {world[ended.local_rank]: None for ended, _ in self._ended if ended.exitcode == 0}
            self.reap()
            self._running = {}
            self._ended = []

    def failures(self):
        with self._lock:
            if not self._running and not self._ended:
                return self._failures
            return self._explain({ranks.local: ranks.world for ranks in self.plans[-1].ranks}) if self._ended else {}

    def return_values(self):
        return self._values

    def close(self):
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._bell_reader)
                os.close(self._bell_writer)

    def _explain(self, world):
        bad = [ended for ended, obeyed in self._ended if ended.exitcode != 0 and not obeyed]
        plan = self.plans[-1]
        return {
            world[ended.local_rank]: ProcessFailure(
                local_rank=ended.local_rank,
                pid=ended.pid,
                exitcode=ended.exitcode,
                global_rank=world[ended.local_rank],
                role=plan.role,
                node=plan.node,
                round=plan.round,
                reason=self._reasons.get(ended.local_rank, f"exit code {ended.exitcode}"),
                stack="no stack: a fake worker has none" if ended.local_rank in self._reasons else "",
                caused_by=None if ended is bad[0] else world[bad[0].local_rank],
            )
            for ended in bad
        }

    def _end(self, local_rank, exitcode, obeyed):
        ended = WorkerExit(local_rank, self._running.pop(local_rank), exitcode)
        self._fresh.append(ended)
        self._ended.append((ended, obeyed))
        os.write(self._bell_writer, b"!")


def round_info(
    number=1,
    members=(("default", 1),),
    rank=0,
    restart_count=0,
    reason="",
):
    """A round as returned by a handler. `members` are pairs of role and local world size in group rank order; their
    nodes are named node0, node1, ..."""
    seats = tuple(Member(f"node{i}", f"host{i}", f"10.0.0.{i}", role, size) for i, (role, size) in enumerate(members))
    where = RendezvousStoreInfo("10.0.0.0", _FIRST_PORT + number)
    return RendezvousInfo(MemoryStore(), rank, len(seats), where, Round(number, seats, restart_count, reason))


class FakeRounds(RoundHandler):
    """See `interfaces.handler.RoundHandler`.

    Args:
        rounds: one step for each call of `next_rendezvous`: a round to return, an error to raise, or a function that
            returns a round (it may block or raise). If a function returns None, or no step is left, the last round is
            repeated with the next number; the first is then a round of one worker.
        on_failure, on_success: called with this object for each report; the place to give verdicts.
        can_announce: the result of `leave`.

    Attributes:
        calls: all calls in order: the method's name and its arguments.
        deadline: the result of `ask_again`.
        due: the result of `stop_by`.
        missing: the result of `progress`.
        hosts_store: whether this node hosts the job's store.
        released: set by `shutdown`; blocking steps wait for it.
    """

    hosts_store = False

    def __init__(self, rounds=(), on_failure=None, on_success=None, can_announce=True):
        self._steps = list(rounds)
        self._on_failure = on_failure
        self._on_success = on_success
        self._can_announce = can_announce
        self._listeners = []
        self._verdict = None
        self._last = None
        self.calls = []
        self.deadline = None
        self.due = None
        self.missing = ""
        self.released = threading.Event()

    def give(self, verdict):
        """Set the verdict and notify the listeners. Thread-safe."""
        self._verdict = verdict
        for listener in self._listeners:
            listener()

    def calls_to(self, name):
        """The arguments of all calls to this method."""
        return [call[1:] for call in self.calls if call[0] == name]

    def get_backend(self):
        return "fake"

    def get_run_id(self):
        return "job"

    def next_rendezvous(self):
        self.calls.append(("next_rendezvous",))
        step = self._steps.pop(0) if self._steps else None
        if isinstance(step, BaseException):
            raise step
        info = step() if callable(step) else step
        self._last = info or self._next()
        self._verdict = None
        return self._last

    def is_closed(self):
        return self._verdict is not None and self._verdict.outcome is Outcome.CLOSED

    def set_closed(self):
        self.calls.append(("set_closed",))

    def num_nodes_waiting(self):
        self.calls.append(("num_nodes_waiting",))
        return 0

    def shutdown(self):
        self.released.set()
        return True

    def subscribe(self, listener):
        self._listeners.append(listener)

    def verdict(self):
        return self._verdict

    def ask_again(self):
        return self.deadline

    def stop_by(self):
        return self.due

    def report_failure(self, failures):
        self.calls.append(("report_failure", dict(failures)))
        if self._on_failure:
            self._on_failure(self)

    def report_success(self):
        self.calls.append(("report_success",))
        if self._on_success:
            self._on_success(self)

    def leave(self, reason, timeout):
        self.calls.append(("leave", reason, timeout))
        return self._can_announce

    def hurry(self):
        self.calls.append(("hurry",))

    def progress(self):
        return self.missing

    def _next(self):
        if self._last is None or self._last.formed is None:
            return round_info()
        formed = self._last.formed
        members = [(member.role, member.local_world_size) for member in formed.members]
        return round_info(formed.number + 1, members, self._last.rank, formed.restart_count)


class RecordingObserver:
    """See `interfaces.observer.Observer`. All lists are in the order of the notifications.

    Attributes:
        facts: those that plugins get as well.
        phases: the agent's phases.
        exits: the workers' exits.
    """

    def __init__(self):
        self.facts = []
        self.phases = []
        self.exits = []

    def __call__(self, fact):
        if isinstance(fact, PhaseChanged):
            self.phases.append(fact)
        elif isinstance(fact, WorkerExited):
            self.exits.append(fact)
        else:
            self.facts.append(fact)
