"""Campaigns: run real agents and workers under random faults, and check the history afterwards.

Campaigns are for authors of backends and of the core. `Setting` describes the job, `draw` creates a storm (a sequence
of waves of faults), `Job` runs the job through the storm, and `check` finds violations:

    setting = Setting("sqlite", str(tmp_path / "rendezvous.db"))
    storm = draw("seed 1", 20, kinds_of(setting), setting.nodes)
    assert not check(Job(setting, tmp_path / "run").run(storm))

The same seed gives the same storm, but timing differs between runs. `smaller` reduces a failing storm to a few
faults, and `write` saves it to a file.
"""

from elastic_testing.campaign.history import Event, History, SeenRound, Span, Worker
from elastic_testing.campaign.job import Job
from elastic_testing.campaign.rules import RULES, Violation, check
from elastic_testing.campaign.setting import Server, Setting, kinds_of
from elastic_testing.campaign.storm import KINDS, Fault, FaultKind, FaultWave, Storm, draw, read, smaller, write

__all__ = [
    "Event",
    "Fault",
    "History",
    "Job",
    "KINDS",
    "FaultKind",
    "RULES",
    "SeenRound",
    "Server",
    "Setting",
    "Span",
    "Storm",
    "Violation",
    "FaultWave",
    "Worker",
    "check",
    "draw",
    "kinds_of",
    "read",
    "smaller",
    "write",
]
