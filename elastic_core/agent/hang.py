"""Detects hangs from outside the workers. A table records when each worker last made progress. From new samples and the
current time, the table determines which worker hangs and when the next check is due, without side effects.

A worker has made progress if its sample shows more output, another heartbeat, or more CPU time than idle helper threads
use. CPU time proves little, because a worker that waits in an NCCL collective spins. CPU time is therefore ignored for
workers that have written output or sent heartbeats regularly, because they will continue to do so unless they hang.

Workers are checked four times per timeout, and whenever a worker's timeout expires, so a hang is detected at most a
quarter of the timeout late. Time in which the agent itself was stopped or starved is ignored, because the agent could
not read output then."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.interfaces.workers import Expiry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.clock import Duration, Instant
    from elastic_core.interfaces.workers import WorkerSample

LOOKS_PER_TIMEOUT = 4
IDLE_SHARE = 0.02  # the share of one core that an idle process uses, because some threads wake up from time to time
_COARSE: Duration = 0.015  # seconds; the kernel counts CPU time in steps of 0.01 s, and a single step proves nothing

WORDS: Mapping[str, str] = {"log": "no log line", "cpu": "no CPU time", "beat": "no beat"}
"""Maps each sign of progress to the phrase that reports its absence."""


@dataclass(frozen=True)
class HangPolicy:
    """The criteria for considering a worker hung.

    Args:
        timeout: seconds without progress; greater than 0.
        warmup: seconds after the workers' start in which no worker is considered hung.
        progress: the signs of progress to look for, a subset of `WORDS`.
    """

    timeout: Duration
    warmup: Duration = 60.0
    progress: tuple[str, ...] = tuple(WORDS)

    @property
    def step(self) -> Duration:
        """The number of seconds between two checks."""
        return self.timeout / LOOKS_PER_TIMEOUT

    def table(self, now: Instant) -> HangTable:
        """Return the table for workers that have just started. The first check comes after the warmup."""
        return HangTable(self, later(now, self.warmup))


@dataclass(frozen=True)
class _Row:
    """One worker's row in the table.

    Args:
        effort: the CPU time that the worker used in the last interval in which it made progress.
        signs: the first and last of a series of checks that found new output or a heartbeat. The gaps in the series are
            at most half a timeout long.
        regular: whether such a series has lasted for a whole timeout. If so, the worker's CPU time is ignored.
    """

    sample: WorkerSample
    looked_at: Instant
    moved_at: Instant
    effort: float = 0.0
    signs: tuple[Instant, Instant] | None = None
    regular: bool = False

    def after(self, sample: WorkerSample, now: Instant, away: bool, timeout: Duration) -> _Row:
        if sample.pid != self.sample.pid:
            return _Row(sample, now, now)
        grown = sample.cpu - self.sample.cpu
        row = replace(self, sample=sample, looked_at=now)
        if (sample.written, sample.beats) != (self.sample.written, self.sample.beats):
            first = self.signs[0] if self.signs and now - self.signs[1] <= timeout / 2 else now
            regular = self.regular or now - first >= timeout
            return replace(row, moved_at=now, effort=grown, signs=(first, now), regular=regular)
        busy = not self.regular and grown > max(IDLE_SHARE * (now - self.looked_at), _COARSE)
        if busy or sample.held_up:
            return replace(row, moved_at=now, effort=grown)
        credit = now - self.looked_at if away else 0.0
        return replace(row, moved_at=later(self.moved_at, credit))


@dataclass(frozen=True)
class HangTable:
    """The state of a round's workers at the last check. `next_look` is when the next check is due."""

    policy: HangPolicy
    next_look: Instant
    rows: Mapping[int, _Row] = field(default_factory=dict)

    def look(self, samples: Sequence[WorkerSample], now: Instant) -> tuple[HangTable, Expiry | None]:
        """Return the table after a check of the running workers, and the hung worker, if any.

        When one worker hangs, other workers stall because they wait for it. The worker that stopped making progress
        first is therefore considered hung. If several workers stopped between the same two checks, the one that had
        used the least CPU time is considered hung."""
        away = now - self.next_look > self.policy.step / 2  # so long ago that the time since then should be ignored
        rows = {sample.local_rank: self._row(sample, now, away) for sample in samples}
        hung = [row for row in rows.values() if now >= self._end(row)]
        first = min(hung, key=lambda row: (row.moved_at, row.effort, row.sample.local_rank), default=None)
        ends = [end for row in rows.values() if (end := self._end(row)) > now]
        table = HangTable(self.policy, min([later(now, self.policy.step), *ends]), rows)
        return table, self._expiry(first, now) if first else None

    def _row(self, sample: WorkerSample, now: Instant, away: bool) -> _Row:
        row = self.rows.get(sample.local_rank)
        return row.after(sample, now, away, self.policy.timeout) if row else _Row(sample, now, now)

    def _end(self, row: _Row) -> Instant:
        return later(row.moved_at, self.policy.timeout)

    def _expiry(self, row: _Row, now: Instant) -> Expiry:
        counted = [name for name in WORDS if name in self.policy.progress and not (name == "cpu" and row.regular)]
        missing = ", ".join(WORDS[name] for name in counted)
        reason = f"no progress for {round(now - row.moved_at, 1):g} s ({missing})"
        return Expiry(row.sample.pid, scope="", reason=reason, late=now - self._end(row))
