"""Injects faults into a campaign's job. There is one method for each kind of fault.

Each method injects its fault immediately, and calls `end` when the fault is over. It returns the process ID of the
target, 0 if the target is not a process, or None if there was no target.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil

from elastic_testing.campaign.setting import GROUPS
from elastic_testing.campaign.stage import LOOK_S, lives, mount, now, unmount

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_testing.campaign.stage import Agent, JobStage
    from elastic_testing.campaign.storm import Fault, FaultWave

WORKER_MEMORY = 64 * 2**20
_NOT_FOUND = 8  # the exit code of `elastic drain` if it knows that it has not drained the node
_DRAINS = 5  # attempts to drain a node


def meant(at: float, jumps: Sequence[Sequence[float]], first: float, last: float) -> float | None:
    """Correct a timestamp that was taken between `first` and `last` with a clock that was wrong during `jumps`. Each
    jump is a tuple of start, end and offset, all in seconds. Returns the timestamp unchanged if no correction fits, and
    None if several corrections fit."""
    could = [at - by for begun, over, by in jumps if begun <= at - by <= over]
    if first <= at <= last and not any(begun <= at <= over for begun, over, _ in jumps):
        could.append(at)
    return at if not could else could[0] if len(could) == 1 else None


class Faults:
    """Injects the faults of one wave after another. `missed` is true if a fault of the current wave had no target."""

    def __init__(self, stage: JobStage) -> None:
        self._stage = stage
        self._wave, self.missed, self._begun = -1, False, now()
        self._open: set[tuple[int, int]] = set()
        self._names_of: dict[int, tuple[str, str]] = {}  # by place, from before the first fault, as faults may overlap
        self._files_of: dict[int, tuple[int, int]] = {}  # the same, by process
        self._jumps: list[tuple[int, float, float, int]] = []  # jumps of wall clocks: place, start, end, offset in s

    def begin(self, number: int, wave: FaultWave) -> None:
        """Schedule the faults of a wave."""
        self._wave, self.missed = number, False
        self._open = {(number, place) for place in range(len(wave.faults))}
        for place, fault in enumerate(wave.faults):
            self._stage.later(fault.after_s, partial(self._strike, place, fault))

    @property
    def over(self) -> bool:
        """Whether all faults of the wave are over."""
        return not self._open

    def right(self, place: int, at: float) -> float | None:
        """Correct a timestamp from the wall clock of the machine at this place; see `meant`."""
        return meant(at, [jump for where, *jump in self._jumps if where == place], self._begun, now())

    def _strike(self, number: int, fault: Fault) -> None:
        wave, over = self._wave, False

        def end() -> None:
            nonlocal over
            if not over:
                over = True
                self._stage.tell("fault over", number=wave, fault=number)
                self._open.discard((wave, number))

        pid = getattr(self, f"_{fault.kind}")(fault, end)
        self.missed |= pid is None
        self._stage.tell("fault", number=wave, fault=number, kind=fault.kind, place=fault.place, pid=pid,
                         missed=pid is None)  # fmt: skip
        if pid is None:
            end()

    def _send(self, pid: int | None, signum: signal.Signals, end: Callable[[], None] | None = None) -> int | None:
        if pid is not None:
            try:
                os.kill(pid, signum)
            except ProcessLookupError:
                pid = None
        if end:
            end()
        return pid

    def _pause(self, pid: int | None, fault: Fault, end: Callable[[], None]) -> int | None:
        def go_on() -> None:
            self._send(pid, signal.SIGCONT)
            end()

        self._stage.later(fault.lasts_s, go_on)
        return self._send(pid, signal.SIGSTOP)

    def _worker_kill(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._send(self._stage.worker(fault.place), signal.SIGKILL, end)

    def _worker_term(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._send(self._stage.worker(fault.place), signal.SIGTERM, end)

    def _worker_stop(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._pause(self._stage.worker(fault.place), fault, end)

    def _worker_memory(self, fault: Fault, end: Callable[[], None]) -> int | None:
        pid = self._stage.worker(fault.place)
        group = GROUPS / f"elastic-campaign-{os.getpid()}-{self._wave}-{fault.place}"
        if pid is None:
            return None
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(WORKER_MEMORY))
        (group / "cgroup.procs").write_text(str(pid))

        def gone() -> None:
            if lives(pid):
                self._stage.later(0.1, gone)
                return
            try:
                group.rmdir()
            except OSError:  # the kernel still uses the group
                self._stage.later(0.1, gone)
            else:
                end()

        self._stage.later(0.1, gone)
        return self._send(pid, signal.SIGUSR1)

    def _lose(self, fault: Fault, end: Callable[[], None], signum: signal.Signals) -> int | None:
        """Send the signal to an agent, and replace the agent when the fault is over."""
        agent = self._stage.agent(fault.place)
        if agent is None:
            return None
        self._stage.loses(agent, -signum, 128 + signum)
        if signum == signal.SIGTERM and "elastic" not in self._stage.setting.have:
            self._stage.may_end(agent, 1)
        self._send(agent.process.pid, signum)
        self._when_gone(agent, fault, end)
        return agent.process.pid

    def _when_gone(self, agent: Agent, fault: Fault, end: Callable[[], None]) -> None:
        def again() -> None:
            self._stage.replaces(agent)
            end()

        def look() -> None:
            if agent.over:
                self._stage.later(fault.lasts_s, again)
            else:
                self._stage.later(LOOK_S, look)

        look()

    def _agent_kill(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._lose(fault, end, signal.SIGKILL)

    def _agent_term(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._lose(fault, end, signal.SIGTERM)

    def _agent_stop(self, fault: Fault, end: Callable[[], None]) -> int | None:
        agent = self._stage.agent(fault.place)
        return self._pause(agent.process.pid, fault, end) if agent else None

    def _guardian_kill(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._send(self._stage.helper(fault.place, "-X sessions"), signal.SIGKILL, end)

    def _guardian_stop(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._pause(self._stage.helper(fault.place, "-X sessions"), fault, end)

    def _template_kill(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._send(self._stage.helper(fault.place, "elastic: template"), signal.SIGKILL, end)

    def _template_stop(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._pause(self._stage.helper(fault.place, "elastic: template"), fault, end)

    def _member_ends(self, fault: Fault, end: Callable[[], None], signum: signal.Signals) -> int | None:
        pid = self._send(self._stage.member(fault.place), signum)
        if pid is None or not self._stage.setting.servers:
            end()
            return pid

        def again() -> None:
            self._stage.member_again(fault.place, pid)
            end()

        self._stage.later(fault.lasts_s, again)
        return pid

    def _member_kill(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._member_ends(fault, end, signal.SIGKILL)

    def _member_term(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._member_ends(fault, end, signal.SIGTERM)

    def _keeper_kill(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._send(self._stage.helper(fault.place, "-X keeper"), signal.SIGKILL, end)

    def _member_stop(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._pause(self._stage.member(fault.place), fault, end)

    def _machine_empty(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._machine_off(fault, end, empty=True)

    def _machine_off(self, fault: Fault, end: Callable[[], None], empty: bool = False) -> int | None:
        machine, agent = self._stage.machine(fault.place), self._stage.agent(fault.place)
        if machine is None or agent is None:
            return None
        self._stage.goes_off(fault.place)
        machine.off()

        def on() -> None:
            machine.mend()
            for path in self._stage.disk(fault.place).glob("*") if empty else ():
                shutil.rmtree(path, ignore_errors=True)
            self._stage.comes_back(fault.place)
            end()

        self._stage.later(fault.lasts_s, on)
        return agent.process.pid

    def _link_cut(self, fault: Fault, end: Callable[[], None]) -> int | None:
        machine = self._stage.machine(fault.place)
        if machine is None or self._stage.is_away(fault.place):
            return None
        machine.cut()

        def mend() -> None:
            if not self._stage.is_away(fault.place):
                machine.mend()
            end()

        self._stage.later(fault.lasts_s, mend)
        return 0

    def _one_way(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._lost_on_the_way(fault, end, both=False)

    def _lost_on_the_way(self, fault: Fault, end: Callable[[], None], both: bool) -> int | None:
        machine, other = self._stage.machine(fault.place), self._stage.machine(fault.other)
        if machine is None or other is None or machine is other:
            return None
        ways = [(machine, other), *([(other, machine)] if both else [])]
        for one, another in ways:
            one.loses(another)

        def mend() -> None:
            for one, another in ways:
                with contextlib.suppress(subprocess.CalledProcessError):  # another fault has already removed the route
                    one.finds(another)
            end()

        self._stage.later(fault.lasts_s, mend)
        return 0

    def _for_a_while(
        self, fault: Fault, end: Callable[[], None], begin: str, *words: Any, over: Any = ()
    ) -> int | None:
        """Call the machine's method `begin`, and call it again with the arguments `over` when the fault is over."""
        machine = self._stage.machine(fault.place)
        if machine is None:
            return None
        getattr(machine, begin)(*words)

        def mend() -> None:
            getattr(machine, begin)(*over)
            end()

        self._stage.later(fault.lasts_s, mend)
        return 0

    def _slow(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._for_a_while(fault, end, "shape", "tbf", "rate", "64kbit", "burst", "2kb", "latency", "5s")

    def _disorder(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._for_a_while(fault, end, "disorders", 4, over=(0,))

    def _narrow(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._for_a_while(fault, end, "shape", "tbf", "rate", "128kbit", "burst", "4kb", "limit", "8kb")

    def _lossy(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._for_a_while(fault, end, "drops", 10, over=(0,))

    def _apart(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._lost_on_the_way(fault, end, both=True)

    def _clock_jump(self, fault: Fault, end: Callable[[], None]) -> int | None:
        seconds = int(10 ** (2 * fault.lasts_s))  # from seconds to about eleven days
        self._stage.sets_clock(fault.place, seconds if fault.other % 2 else -seconds)

        begun = now()

        def mend() -> None:
            self._stage.sets_clock(fault.place, 0)
            self._jumps.append((fault.place, begun, now(), seconds if fault.other % 2 else -seconds))
            end()

        self._stage.later(fault.lasts_s, mend)
        return 0

    def _names(self, fault: Fault, end: Callable[[], None], resolver: str) -> int | None:
        machine = self._stage.machine(fault.place)
        known = self._names_of.setdefault(fault.place, machine.names()) if machine else ()
        return self._for_a_while(fault, end, "name", "", resolver, over=known)

    def _names_fail(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._names(fault, end, "127.0.0.1")  # nothing is listening there

    def _names_stall(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._names(fault, end, "10.97.0.250")  # an unused address

    def _spoil(self, fault: Fault, end: Callable[[], None], mend: Callable[[], object]) -> int:
        """Make a disk unwritable for a while."""
        self._stage.spoils(fault.place)

        def over() -> None:
            try:
                mend()
            except OSError:  # another fault still keeps the disk read-only
                self._stage.later(LOOK_S, over)
                return
            self._stage.heals(fault.place)
            end()

        self._stage.later(fault.lasts_s, over)
        return 0

    def _disk_full(self, fault: Fault, end: Callable[[], None]) -> int | None:
        filler = self._stage.disk(fault.place) / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(2**20))
                file.flush()
        return self._spoil(fault, end, lambda: filler.unlink(missing_ok=True))

    def _disk_read_only(self, fault: Fault, end: Callable[[], None]) -> int | None:
        mount("-t", "tmpfs", "-o", "ro,size=4k", "none", str(self._stage.disk(fault.place)))
        return self._spoil(fault, end, lambda: unmount(self._stage.disk(fault.place)))

    def _descriptors(self, fault: Fault, end: Callable[[], None]) -> int | None:
        agent = self._stage.agent(fault.place)
        if agent is None or self._stage.worker(fault.place) is None:  # importing torch fails if it cannot open files
            return None
        pid = agent.process.pid
        self._stage.may_end(agent, 2)  # the exit code of an agent that cannot open files to start a worker
        try:
            before = self._files_of.setdefault(pid, resource.prlimit(pid, resource.RLIMIT_NOFILE))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (psutil.Process(pid).num_fds(), before[1]))
        except (psutil.Error, OSError):
            return None

        def mend() -> None:
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            end()

        self._stage.later(fault.lasts_s, mend)
        return pid

    def _newcomer(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._spare(fault, end, signal.SIGTERM)

    def _spare_kill(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._spare(fault, end, signal.SIGKILL)

    def _spare(self, fault: Fault, end: Callable[[], None], signum: signal.Signals) -> int | None:
        if self._stage.is_away(fault.place):
            return None
        agent = self._stage.spare(fault.place)

        def go() -> None:
            self._stage.may_end(agent, -signum, 128 + signum)
            self._send(None if agent.over else agent.process.pid, signum)
            gone()

        def gone() -> None:
            if agent.over:
                end()
            else:
                self._stage.later(LOOK_S, gone)

        self._stage.later(fault.lasts_s, go)
        return agent.process.pid

    def _drain(self, fault: Fault, end: Callable[[], None]) -> int | None:
        agent = self._stage.agent(fault.place)
        if agent is None or self._stage.is_away(fault.other):
            return None
        self._stage.loses(agent, 9)
        asked, attempts = self._stage.ask(fault.other, "drain", agent.name), 1

        def look() -> None:
            nonlocal asked, attempts
            if agent.over:
                self._when_gone(agent, fault, end)
                return
            if (code := asked.poll()) in (None, 0) or self._stage.is_away(fault.other):
                self._stage.later(LOOK_S, look)
            elif code != _NOT_FOUND and attempts < _DRAINS:  # another fault interfered, perhaps only with the answer
                asked, attempts = self._stage.ask(fault.other, "drain", agent.name), attempts + 1
                self._stage.later(LOOK_S, look)
            else:
                self._stage.keeps(agent)
                end()

        look()
        return agent.process.pid

    def _join(self, fault: Fault, end: Callable[[], None]) -> int | None:
        self._stage.joins(fault.place)
        end()
        agent = self._stage.agent(fault.place)
        return agent.process.pid if agent else None

    def _done(self, fault: Fault, end: Callable[[], None]) -> int | None:
        """Let the job finish: this node immediately, and all other nodes later."""
        agent = self._stage.agent(fault.place)
        if agent is None:
            return None
        self._stage.finish(stay=f"{agent.name} {fault.lasts_s}")
        self._stage.later(fault.lasts_s, end)
        return agent.process.pid

    def _second_job(self, fault: Fault, end: Callable[[], None]) -> int | None:
        if self._stage.is_away(fault.place):
            return None
        agent, finish = self._stage.second_job(fault.place)
        self._stage.later(fault.lasts_s, finish.touch)

        def gone() -> None:
            if agent.over:
                end()
            else:
                self._stage.later(LOOK_S, gone)

        gone()
        return agent.process.pid

    def _status(self, fault: Fault, end: Callable[[], None]) -> int | None:
        if self._stage.is_away(fault.place):
            return None
        until = now() + fault.lasts_s
        asked = self._stage.ask(fault.place, "status", "--json")

        def look() -> None:
            nonlocal asked
            if asked.poll() is None:
                self._stage.later(LOOK_S, look)
            elif now() < until and not self._stage.is_away(fault.place):
                asked = self._stage.ask(fault.place, "status", "--json")
                self._stage.later(LOOK_S, look)
            else:
                end()

        look()
        return asked.pid
