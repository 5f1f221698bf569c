from __future__ import annotations

import pytest

from elastic_core.health import live, ready
from elastic_core.interfaces.health import AgentPhase, AgentStatus

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("silent", "fault", "ok", "reason"),
    [
        (0.0, "", True, "the agent's loop is running"),
        (-5.0, "", True, "the agent's loop is running"),  # the wall clock was set back
        (30.0, "", True, "the agent's loop is running"),
        (30.5, "", False, "stuck: no iteration of the agent's loop for 30 s (limit: 30 s)"),
        (100.0, "it died", False, "stuck: no iteration of the agent's loop for 100 s (limit: 30 s)"),
        (1.0, "it died", False, "the workers' watchdog has failed: it died"),
    ],
)
def test_livez_fails_when_stuck_or_watchdog_failed(silent, fault, ok, reason):
    assert live(NOW - silent, NOW, 30.0, fault) == (ok, reason)


@pytest.mark.parametrize("phase", AgentPhase)
def test_readyz_succeeds_only_while_running(phase):
    status = AgentStatus(1, "job", "node", "role", phase, NOW, reason="because")
    assert ready(status) == (phase is AgentPhase.RUNNING, f"{phase.value}: because")


def test_readyz_without_a_reason_names_the_phase():
    assert ready(AgentStatus(1, "job", "node", "role", AgentPhase.STARTING, NOW)) == (False, "starting")
