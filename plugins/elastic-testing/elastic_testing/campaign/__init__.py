"""A campaign: real agents and workers under faults drawn by lot, and a checker that reads the history afterwards.

It is for whoever writes a backend or changes the core. `Setting` says what job it is, `draw` makes a storm, `Job` runs
the job through it, `check` finds what may not be:

    setting = Setting("sqlite", str(tmp_path / "rendezvous.db"))
    storm = draw("seed 1", 20, kinds_of(setting), setting.nodes)
    assert not check(Job(setting, tmp_path / "run").run(storm))

The same storm comes of the same seed; what the machine makes of it differs. `smaller` makes a storm that fails one of
few faults, and `write` keeps it as a story.
"""

from elastic_testing.campaign.history import Event, History, SeenRound, Span, Worker
from elastic_testing.campaign.job import Job
from elastic_testing.campaign.rules import RULES, Violation, check
from elastic_testing.campaign.setting import Server, Setting, kinds_of
from elastic_testing.campaign.storm import KINDS, Fault, Kind, Storm, Wave, draw, read, smaller, write

__all__ = [
    "Event",
    "Fault",
    "History",
    "Job",
    "KINDS",
    "Kind",
    "RULES",
    "SeenRound",
    "Server",
    "Setting",
    "Span",
    "Storm",
    "Violation",
    "Wave",
    "Worker",
    "check",
    "draw",
    "kinds_of",
    "read",
    "smaller",
    "write",
]
