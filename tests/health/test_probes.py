from __future__ import annotations

import pytest

from elastic_core.health import live, ready
from elastic_core.interfaces.health import AgentPhase, AgentStatus

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("silent", "fault", "ok", "reason"),
    [
        (0.0, "", True, "the agent's loop turns"),
        (-5.0, "", True, "the agent's loop turns"),  # the time of day was set back
        (30.0, "", True, "the agent's loop turns"),
        (30.5, "", False, "stuck: the agent's loop has not turned for 30 s, 30 s are allowed"),
        (100.0, "it died", False, "stuck: the agent's loop has not turned for 100 s, 30 s are allowed"),
        (1.0, "it died", False, "no watchdog watches the workers: it died"),
    ],
)
def test_liveness(silent, fault, ok, reason):
    assert live(NOW - silent, NOW, 30.0, fault) == (ok, reason)


@pytest.mark.parametrize("phase", AgentPhase)
def test_only_running_workers_are_ready(phase):
    status = AgentStatus(1, "job", "node", "role", phase, NOW, reason="because")
    assert ready(status) == (phase is AgentPhase.RUNNING, f"{phase.value}: because")


def test_a_phase_without_a_reason():
    assert ready(AgentStatus(1, "job", "node", "role", AgentPhase.STARTING, NOW)) == (False, "starting")
