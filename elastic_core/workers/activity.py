"""Activity: what the workers of a round have done so far, which shows whether one of them hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.interfaces.workers import WorkerSample
from elastic_core.watchdog.beat import BEAT_FILE, BeatFile
from elastic_core.workers import sessions

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from elastic_core.workers.output import RoundOutput
    from elastic_core.workers.process import WorkerProcess

LOG, CPU, BEAT = "log", "cpu", "beat"


class Activity:
    """The activity of one round's workers. `sources` names what is looked at, out of `log`, `cpu` and `beat`. `close`
    removes the files of the beats."""

    def __init__(self, sources: Collection[str], output: RoundOutput) -> None:
        self._sources = frozenset(sources)
        self._output = output
        self._delivered = -1
        self._files: dict[int, BeatFile] = {}
        self._beats: dict[int, int] = {}

    def environment(self, local_rank: int, scratch: Path) -> dict[str, str]:
        """The variables that tell a worker, before it starts, where to beat. Makes its file in `scratch`. Raises
        OSError."""
        if BEAT not in self._sources:
            return {}
        path = scratch / f"beat-{local_rank}"
        path.unlink(missing_ok=True)
        self._files[local_rank] = BeatFile(path)
        return {BEAT_FILE: str(path)}

    def samples(self, workers: Sequence[WorkerProcess]) -> list[WorkerSample]:
        """A sample of each of these workers, all of which run."""
        held_up = self._held_up()
        cpu = _cpu_seconds(workers) if CPU in self._sources else {}
        return [
            WorkerSample(
                local_rank=worker.ranks.local,
                pid=worker.pid,
                written=self._output.written(worker.ranks.local) if LOG in self._sources else 0,
                cpu=cpu.get(worker.pid, 0.0),
                beats=self._count_beats(worker.ranks.local),
                held_up=held_up,
            )
            for worker in workers
        ]

    def close(self) -> None:
        """Idempotent."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def _count_beats(self, local_rank: int) -> int:
        file = self._files.get(local_rank)
        if file is not None and file.changed():
            self._beats[local_rank] = self._beats.get(local_rank, 0) + 1
        return self._beats.get(local_rank, 0)

    def _held_up(self) -> bool:
        """Whether the console has taken nothing since the last look although there is something for it."""
        before, self._delivered = self._delivered, self._output.delivered()
        return self._output.busy and self._delivered == before


def _cpu_seconds(workers: Sequence[WorkerProcess]) -> dict[int, float]:
    """The CPU time of each worker's session, by the worker's process id. It includes the time of children that have
    ended, if their parent has waited for them."""
    import psutil

    seconds = dict.fromkeys((worker.pid for worker in workers), 0.0)
    for process in sessions.members({worker.pid: worker.start for worker in workers}):
        leader = process.pid if process.pid in seconds else process.session
        try:
            times = psutil.Process(process.pid).cpu_times()
        except psutil.Error:
            continue  # gone meanwhile
        if leader in seconds:
            seconds[leader] += times.user + times.system + times.children_user + times.children_system
    return seconds
