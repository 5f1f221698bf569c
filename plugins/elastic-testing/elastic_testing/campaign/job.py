"""Runs a job through a storm, with real agents and workers, and returns the history."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import psutil

from elastic_testing.campaign.faults import Faults
from elastic_testing.campaign.history import History
from elastic_testing.campaign.stage import JobStage, now

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_testing.campaign.setting import Setting
    from elastic_testing.campaign.storm import FaultWave, Storm

FORM_S = 90.0
FINISH_S = 60.0
STEADY_S = 1.5
"""The number of seconds within which a job takes a step, even on a busy machine."""


class Job:
    """Runs one job through one storm. `run` can be called only once. It ends all processes that it has started.

    Args:
        setting: the setting of the job.
        folder: an empty folder for all files.
        run_id: the job's run ID ("campaign").
    """

    def __init__(self, setting: Setting, folder: Path, run_id: str = "campaign") -> None:
        self._stage = JobStage(setting, folder, run_id)
        self._faults = Faults(self._stage)
        self._wave = -1

    def run(self, storm: Storm) -> History:
        """Start the job, run it through the storm of faults, and finish it. The history records the job's errors."""
        try:
            self._form({fault.place for wave in storm for fault in wave.faults if fault.kind == "join"})
            for wave in storm:
                if not self._through_wave(wave):
                    break
            self._finish()
        finally:
            self._stage.tear_down()
        self._read_logs()
        history = History.read(self._stage.record)
        self._stage.record.unlink()
        history.write(self._stage.folder / "history.jsonl")
        return history

    def _form(self, late: set[int]) -> None:
        self._stage.set_up(late)
        ready = self._stage.setting.ready
        if not self._stage.until(lambda: self._whole(0.0, 0.0) is not None and ready(), FORM_S):
            self._stage.tell("not formed", limit_s=FORM_S, why=self._why())
        self._hold()

    def _whole(self, since: float, begun: float) -> tuple[float, float] | None:
        nodes = self._stage.nodes()
        return self._stage.seen.whole(nodes, since, begun) if nodes else None

    def _through_wave(self, wave: FaultWave) -> bool:
        """Run one wave. Returns whether the job recovered in time."""
        self._wave += 1
        begun = now()
        self._stage.tell(
            "wave", number=self._wave, faults=[asdict(fault) for fault in wave.faults], quiet_s=wave.quiet_s
        )
        self._faults.begin(self._wave, wave)
        longest = max(fault.after_s + fault.lasts_s for fault in wave.faults)
        self._stage.until(lambda: self._faults.over, longest + self._stage.setting.limit_s)
        if self._stage.finishing:
            return False
        over = now()
        least = begun if wave.rounds[0] and not self._faults.missed else 0.0
        found = self._settled(over, least, wave.linger_s)
        if found is None:
            self._stage.tell("not whole", number=self._wave, limit_s=self._stage.setting.limit_s, why=self._why())
            return False
        at, first = found
        new = first > begun
        self._stage.tell("whole", number=self._wave, alive=sorted(self._stage.seen.running()),
                   recovery_s=max(0.0, first - begun) if new else 0.0,
                   healed_s=max(0.0, max(first if new else at, over) - over))  # fmt: skip
        if self._wave == 0:
            self._hold()
        self._stage.until(lambda: False, wave.quiet_s)
        return True

    def _settled(self, over: float, least: float, linger_s: float) -> tuple[float, float] | None:
        """Wait until all nodes train, then for `linger_s` seconds for delayed effects of faults, and then until the
        nodes train steadily and the store is ready. Returns the result of `_whole`, or None if time runs out."""
        deadline = over + linger_s + self._stage.setting.limit_s
        if not self._stage.until(lambda: self._whole(over, least) is not None, deadline - now()):
            return None
        self._stage.until(lambda: False, over + linger_s - now())
        while now() < deadline:
            trains = self._stage.until(lambda: self._whole(now() - STEADY_S, least) is not None, deadline - now())
            steady = not linger_s or not self._stage.until(
                lambda: self._whole(now() - STEADY_S, least) is None, STEADY_S
            )
            if trains and steady and self._stage.setting.ready() and (found := self._whole(over, least)):
                return found
        return None

    def _why(self) -> str:
        """Return the last log lines of the agents."""
        tails = []
        for agent in self._stage.agents():
            lines = agent.said.read_text(errors="replace").strip().splitlines()[-3:]
            tails.append(f"{agent.name} ({'ended' if agent.over else 'running'}): {' | '.join(lines)}")
        return " || ".join(tails)[-3000:]

    def _hold(self) -> None:
        for agent in self._stage.agents():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(agent.process.pid)
                memory = process.memory_info()
                # Pages of libraries do not count. While a process with CUDA's libraries exits, they grow by 120 MB.
                self._stage.tell("holds", node=agent.name, pid=agent.process.pid, files=process.num_fds(),
                           threads=process.num_threads(), memory=memory.rss - memory.shared)  # fmt: skip

    def _finish(self) -> None:
        self._hold()
        self._stage.tell("finish")
        self._stage.finish()
        if self._stage.until(lambda: not self._stage.runs(), FINISH_S):
            self._stage.tell("finished")
        else:
            self._stage.tell("not finished", limit_s=FINISH_S, why=self._why())

    def _read_logs(self) -> None:
        """Add the agents' log lines to the history, with their times converted to the history's clock."""
        offset = time.time() - now()
        for agent in self._stage.ended:
            for line in agent.said.read_bytes().splitlines():
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    entry = json.loads(line)
                    at = self._faults.right(agent.place, _seconds(entry.pop("timestamp")) - offset)
                    if at is not None:
                        with self._stage.record.open("a") as file:
                            file.write(json.dumps({**entry, "at": at, "what": "logged", "node": agent.name}) + "\n")


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
