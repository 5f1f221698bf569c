"""Runs one node's workers as processes. The agent uses them through `interfaces.workers.WorkerProcesses`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.clock import SystemClock
from elastic_core.errors import ConfigurationError
from elastic_core.interfaces.workers import Launch, Leftover, WorkerExit
from elastic_core.log import get_logger, tolerating
from elastic_core.stop import STOP_FILE, StopFile
from elastic_core.support.processes import interrupts_held
from elastic_core.workers import hang, sessions
from elastic_core.workers.failure import (
    Evidence,
    OomWatch,
    explain,
    in_causal_order,
    oom_counters,
    read_error_file,
)
from elastic_core.workers.guardian import Guardian
from elastic_core.workers.hang import Activity
from elastic_core.workers.output import FULL, RoundOutput, make_folder, unwritable
from elastic_core.workers.process import (
    NO_CPUS,
    EnvironmentPolicy,
    WorkerProcess,
    cannot_start,
    limit_files,
    make_exits_visible,
    process_sentinel,
    remedy,
    wait_readable,
)
from elastic_core.workers.streams import OutputPolicy, round_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from elastic_core.clock import Duration, Instant
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.workers import RoundPlan, Starter, WorkerRanks, WorkerSample
    from elastic_core.workers.numa import Binding
    from elastic_core.workers.process import Cpus, EnvironmentMaker, FileLimit


_CLOCK = SystemClock()
_END_PATIENCE: Duration = 5.0  # seconds for a killed worker to exit after other workers have failed to start


@dataclass(frozen=True)
class GroupPolicy:
    """The user's choices for this node's workers.

    Attributes:
        binding: the processors for the workers; None for no binding.
        progress: the signs of progress to look for, a subset of `log`, `cpu` and `beat`; empty if the agent does not
            detect hangs.
        files: the workers' limit on open files, or None if workers get this process's limit.
    """

    output: OutputPolicy = field(default_factory=OutputPolicy)
    environment: EnvironmentMaker = field(default_factory=EnvironmentPolicy)
    binding: Binding | None = None
    progress: frozenset[str] = frozenset()
    files: FileLimit | None = None


@dataclass
class _Round:
    """The running round.

    Attributes:
        exits: the exits so far, in their presumed order. A worker killed for hanging is added before it has exited.
        signals: the signals that the agent has sent.
        asked: the requests to end, each with the signal, the worker's process id, and whether the worker was running.
            Only a running worker receives the signal itself.
    """

    plan: RoundPlan
    output: RoundOutput
    oom: OomWatch
    activity: Activity
    stop_files: dict[int, StopFile] = field(default_factory=dict)
    workers: dict[int, WorkerProcess] = field(default_factory=dict)
    exits: dict[int, tuple[WorkerExit, float]] = field(default_factory=dict)
    signals: set[int] = field(default_factory=set)
    asked: set[tuple[int, int, bool]] = field(default_factory=set)
    unreported: list[WorkerExit] = field(default_factory=list)  # exits that `reap` has not returned yet

    @property
    def leaders(self) -> dict[int, int]:
        return {worker.pid: worker.start for worker in self.workers.values()}


class LocalWorkers:
    """Runs workers as child processes that inherit the variables in `parent_environment`. `counters` returns the
    kernel's counters of OOM kills. For the methods, see `interfaces.workers.WorkerProcesses`."""

    def __init__(
        self,
        starter: Starter,
        policy: GroupPolicy,
        parent_environment: Mapping[str, str],
        counters: Callable[[], Mapping[Path, str]] = oom_counters,
    ) -> None:
        self._counters = counters
        self._starter = starter
        self._policy = policy
        self._parent = parent_environment
        visible = parent_environment.get("CUDA_VISIBLE_DEVICES")
        self._binding = policy.binding.seen_through(visible) if policy.binding else None
        self._guardian: Guardian | None = None
        self._lifeline = -1
        self._scratch: Path | None = None
        self._scratch_lock = -1
        self._round: _Round | None = None
        self._leftover_sentinels: list[int] = []
        self._failures: dict[int, ProcessFailure] = {}
        self._values: dict[int, Any] = {}

    def hold(self, lifeline: int) -> None:
        """Make the guardian keep this descriptor open until no workers are left (see `RoundHandler.lifeline`). Must be
        called before `guard` and `start`."""
        self._lifeline = lifeline

    def guard(self, folders: Iterable[str]) -> None:
        """Ensure that these folders are removed, by `close` or, if the agent is killed, by the guardian. Raises
        ConfigurationError if the guardian cannot start or the temporary folder cannot be created."""
        for folder in folders:
            try:
                self._ensure_helpers()[0].scratch(folder)
            except OSError as error:
                raise cannot_start(error, 1) from error

    def start(self, plan: RoundPlan) -> dict[int, int]:
        make_exits_visible()
        folder = self._open_folder(plan)
        error_files = {ranks.local: str(folder / f"rank-{ranks.world}.error.json") for ranks in plan.ranks}
        environments = {
            ranks.local: self._policy.environment(plan, ranks, self._parent, error_files[ranks.local])
            for ranks in plan.ranks
        }
        placer = self._policy.output.placer
        placement = placer(environments) if placer else None
        error_files |= placement.error_files if placement else {}
        output = RoundOutput(plan, self._policy.output, folder, placement)
        activity = Activity(self._policy.progress, output)
        current = self._round = _Round(plan, output, OomWatch(self._counters()), activity)
        try:
            for ranks in plan.ranks:
                variables = {**environments[ranks.local], "TORCHELASTIC_ERROR_FILE": error_files[ranks.local]}
                self._start_one(current, ranks, variables)
            output.begin()
        except BaseException as error:
            # First free file descriptors, which reading the process table may need. OSError: `begin` was called before,
            # or no thread can be started; `finish` handles both.
            with contextlib.suppress(OSError):
                output.begin()
            self._end_all(current)
            self.finish()
            if isinstance(error, OSError):
                raise cannot_start(error, len(plan.ranks)) from error
            raise
        return {local: worker.pid for local, worker in current.workers.items()}

    def log_files(self, local_rank: int) -> tuple[Path, ...]:
        """Return the files that contain a worker's output in this round, if any, stdout before stderr."""
        return self._round.output.files(local_rank) if self._round else ()

    def template_pid(self) -> int | None:
        """Return the id of the process from which the starter forks workers, or None if there is none."""
        return getattr(self._starter, "template_pid", None)

    def preparation(self, plan: RoundPlan) -> Callable[[], object] | None:
        if (prepare := getattr(self._starter, "prepare", None)) is None:
            return None
        first = plan.ranks[0]
        return partial(prepare, self._policy.environment(plan, first, self._parent, ""), self._cpus_for(first, plan))

    def sentinels(self) -> Collection[int]:
        found = [worker.sentinel for worker in self._running_workers()]
        return [*found, *self._guardian.sentinels()] if found and self._guardian else found

    def reap(self) -> list[WorkerExit]:
        self._look_for_ends()
        if self._round is None:
            return []
        exits, self._round.unreported = self._round.unreported, []
        return exits

    def running(self) -> list[int]:
        return [worker.ranks.local for worker in self._running_workers()]

    def ask_to_stop(self, until: Instant, reason: str) -> None:
        for file in self._stop_files().values():
            file.ask(until, reason)

    def announced_step(self) -> int:
        return max((file.announced() for file in self._stop_files().values()), default=-1)

    def stop_at(self, step: int | None) -> None:
        for file in self._stop_files().values():
            file.answer(step)

    def saved(self) -> list[int]:
        return [local for local, file in self._stop_files().items() if file.saved()]

    def ask(self, signum: int) -> None:
        if self._round is None:
            return
        self._round.signals.add(signum)
        some_run = bool(self._running_workers())
        ended: dict[int, int] = {}
        for worker in self._round.workers.values():
            running = worker.exitcode is None
            # Finding a session's processes is slow, so only the process group is checked while workers run.
            nothing_left = not running and some_run and not sessions.group_exists(worker.pid)
            request = signum, worker.pid, running
            if nothing_left or request in self._round.asked:
                continue
            self._round.asked.add(request)
            if not running:
                ended[worker.pid] = worker.start
            elif sessions.leader_of(worker.pid, {worker.pid: worker.start}):
                sessions.send(worker.pid, signum)
        if ended:
            sessions.send_all(ended, signum)

    def send_signal(self, signum: int) -> None:
        if self._round is not None:
            self._round.signals.add(signum)
            sessions.send_all(self._round.leaders, signum)

    def kill_workers(self) -> None:
        if self._round is not None:
            self._round.signals.add(signal.SIGKILL)
            sessions.kill_all_but_helpers(self._round.leaders)

    def samples(self) -> list[WorkerSample]:
        return self._round.activity.samples(self._running_workers()) if self._round else []

    def kill(self, pid: int, reason: str, ask: bool = True) -> int | None:
        current = self._round
        if current is None:
            return None
        leader = sessions.leader_of(pid, current.leaders)
        if leader is None and sessions.leader_of(pid, {pid: sessions.start_of(pid)}):  # the process is running
            get_logger().warning("timer ignored", pid=pid, reason="the process has left its worker's session")
        worker = next((worker for worker in self._running_workers() if worker.pid == leader), None)
        if worker is None or worker.fault:
            return None
        worker.stack = hang.stacks(worker, pid, current.output, self._parent) if ask else hang.NOT_ASKED
        worker.fault = reason
        local = worker.ranks.local
        current.exits[local] = (WorkerExit(local, worker.pid, -signal.SIGKILL), _CLOCK.timestamp())
        hang.kill(worker, pid, wait=ask)
        return local

    def leftovers(self) -> list[Leftover]:
        self._look_for_ends()
        if self._round is None:
            return []
        found = sessions.members(self._round.leaders)
        return [Leftover(s.pid, s.state, sessions.command_of(s.pid), sessions.waits_in(s.pid)) for s in found]

    def leftover_sentinels(self) -> Collection[int]:
        self._close_leftover_sentinels()
        found = (process_sentinel(leftover.pid) for leftover in self.leftovers())
        self._leftover_sentinels += (sentinel for sentinel in found if sentinel is not None)
        return self._leftover_sentinels

    def drain(self) -> int | None:
        return self._round.output.drain() if self._round else None

    def delivered(self) -> int:
        return self._round.output.delivered() if self._round else 0

    def finish(self) -> None:
        current, self._round = self._round, None
        if current is None:
            return
        self._close_leftover_sentinels()
        current.activity.close()
        for file in current.stop_files.values():
            file.close()
        if not current.output.finish():
            get_logger().warning("output lost", reason="the console did not accept all of the output")
        self._values = self._read_values(current)
        self._failures = self._explained(current)
        current.output.close()
        for worker in current.workers.values():
            worker.release()
            if self._guardian and worker.exitcode is not None:
                self._guardian.forget(worker.pid)

    def failures(self) -> dict[int, ProcessFailure]:
        return self._explained(self._round) if self._round else self._failures

    def return_values(self) -> dict[int, Any]:
        return self._values

    def close(self) -> None:
        end = getattr(self._starter, "close", None)
        with tolerating("plugin failed", "close", part="worker starter"):
            if end is not None:
                end()
        if self._guardian is not None:
            self._guardian.close()
            self._guardian = None
        self._close_scratch()

    def _look_for_ends(self) -> None:
        if self._guardian is not None:
            self._guardian.look()
        if self._round is None:
            return
        fresh = [w for w in self._running_workers() if w.reap()]
        exits = in_causal_order([self._exit_of(worker) for worker in fresh])
        now = _CLOCK.timestamp()
        self._round.exits.update({ended.local_rank: (ended, now) for ended in exits})
        self._round.unreported += exits

    def _stop_files(self) -> dict[int, StopFile]:
        return self._round.stop_files if self._round else {}

    def _running_workers(self) -> list[WorkerProcess]:
        workers = self._round.workers.values() if self._round else ()
        return [worker for worker in workers if worker.exitcode is None]

    def _exit_of(self, worker: WorkerProcess) -> WorkerExit:
        """Return the exit of a worker that has ended. A worker that was killed because it hung has not obeyed."""
        code, obeyed = worker.exitcode or 0, False
        if self._round is not None and self._round.signals and not worker.fault:
            obeyed = code == 0 or bool(self._round.signals & {-code, code - 128})
        return WorkerExit(worker.ranks.local, worker.pid, code, obeyed)

    def _open_folder(self, plan: RoundPlan) -> Path:
        try:
            _, scratch = self._ensure_helpers()
        except OSError as error:
            raise cannot_start(error, len(plan.ranks)) from error
        log_dir = self._policy.output.log_dir
        folder = round_folder(log_dir or scratch, plan)
        try:
            make_folder(folder, log_dir / "latest" if log_dir else None)
        except ConfigurationError as error:
            full = isinstance(error.__cause__, OSError) and error.__cause__.errno in FULL
            if not full or log_dir is None or plan.round == 1:
                raise
            folder = round_folder(scratch, plan)
            with contextlib.suppress(ConfigurationError):
                make_folder(folder, None)
            if not folder.is_dir():
                raise
            reason = f"{error.problems[0].message}; the round's files are in {folder}, which is removed at the end"
            get_logger().warning("output lost", reason=reason)
        return folder

    def _ensure_helpers(self) -> tuple[Guardian, Path]:
        if self._guardian is None:
            with interrupts_held():
                self._guardian = Guardian(self._lifeline)
        if self._scratch is not None and not self._scratch.is_dir():
            self._close_scratch()  # something has cleaned up /tmp
        if self._scratch is None:
            with interrupts_held():
                self._scratch, self._scratch_lock = _temporary_folder()
                self._guardian.scratch(str(self._scratch))
        return self._guardian, self._scratch

    def _close_scratch(self) -> None:
        if self._scratch is not None:
            os.close(self._scratch_lock)
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _cpus_for(self, ranks: WorkerRanks, plan: RoundPlan) -> Cpus:
        return self._binding.cpus_for(ranks.local, len(plan.ranks)) if self._binding else NO_CPUS

    def _start_one(self, current: _Round, ranks: WorkerRanks, variables: dict[str, str]) -> None:
        guardian, scratch = self._ensure_helpers()
        try:  # an earlier run with the same id may have left an error file
            Path(variables["TORCHELASTIC_ERROR_FILE"]).unlink(missing_ok=True)
        except OSError as error:
            chosen = self._policy.output.log_dir or self._policy.output.placer
            raise unwritable(error, log_dir=bool(chosen)) from error
        result = scratch / f"round-{current.plan.round}-rank-{ranks.world}.result"
        cpus = self._cpus_for(ranks, current.plan)
        try:
            variables.update(current.activity.environment(ranks.local, scratch))
            path = scratch / f"stop-{ranks.local}"
            path.unlink(missing_ok=True)
            current.stop_files[ranks.local] = StopFile(path)
            variables[STOP_FILE] = str(path)
        except OSError as error:
            if remedy(error):
                raise
            raise unwritable(error, log_dir=False) from error
        # Neither an interrupt here nor the agent's death may leave behind a worker of which there is no record.
        with interrupts_held(), guardian.expecting() as mark:
            launch = Launch(ranks.local, variables, *current.output.stdio(ranks.local), result, mark, cpus)
            child = self._starter.start(launch)
            worker = WorkerProcess(ranks, launch, child, sessions.start_of(child.pid))
            if self._policy.files:
                limit_files(worker.pid, self._policy.files)
            current.workers[ranks.local] = worker
            guardian.watch(worker.pid, worker.start)
        worker.watch()

    def _end_all(self, current: _Round) -> None:
        """Kill the workers that have started, because others failed to start, and wait until they have exited."""
        sessions.end(current.leaders)
        for worker in self._running_workers():
            if worker.sentinel >= 0:
                wait_readable(worker.sentinel, _END_PATIENCE)
        self._look_for_ends()

    def _explained(self, current: _Round) -> dict[int, ProcessFailure]:
        bad = [it for it in current.exits.values() if it[0].exitcode or current.workers[it[0].local_rank].fault]
        return explain([self._evidence(current, *it) for it in bad], current.plan)

    def _evidence(self, current: _Round, ended: WorkerExit, timestamp: float) -> Evidence:
        worker = current.workers[ended.local_rank]
        error_file = Path(worker.launch.environment["TORCHELASTIC_ERROR_FILE"])
        stderr = current.output.stderr(ended.local_rank)
        return Evidence(
            exit=ended,
            ranks=worker.ranks,
            tail=stderr.tail(),
            error_file=str(error_file),
            error_data=read_error_file(error_file),
            timestamp=timestamp,
            out_of_memory=current.oom.explanation(),
            fault=worker.fault,
            stack=stderr.dump() or worker.stack,
        )

    def _read_values(self, current: _Round) -> dict[int, Any]:
        """Return the values of the workers that succeeded. A worker whose value cannot be read has failed."""
        values: dict[int, Any] = {}
        for worker in current.workers.values():
            if worker.exitcode != 0 or worker.fault:
                continue
            try:
                values[worker.ranks.world] = self._starter.result(worker.launch)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - unpickling runs the user's code
                values[worker.ranks.world] = None
                if worker.launch.result.exists():  # otherwise, the function called os._exit or exec
                    worker.fault = f"its return value cannot be read: {error}"
        return values

    def _close_leftover_sentinels(self) -> None:
        for fd in self._leftover_sentinels:
            os.close(fd)
        self._leftover_sentinels = []


def _temporary_folder() -> tuple[Path, int]:
    """Create a temporary folder. Returns the folder and a descriptor that holds a lock on it, because systemd-tmpfiles
    spares locked folders."""
    try:
        path = Path(tempfile.mkdtemp(prefix="elastic-"))
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except BaseException:
            path.rmdir()
            raise
        with contextlib.suppress(OSError):  # the file system does not support locks
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return path, lock
    except OSError as error:
        if remedy(error):
            raise
        raise unwritable(error, log_dir=False) from error
