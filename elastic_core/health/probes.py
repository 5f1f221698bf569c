"""What the two probes of an orchestrator are answered, as Kubernetes means them. Pure.

Liveness: red means that this process is beyond help, and that it should be killed and started again. So a job that
waits, restarts or has failed is alive; an agent whose loop does not turn is not, and neither is one whose watchdog has
died, for nobody would notice a worker that hangs. Readiness: red means that no work is done here at the moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from elastic_core.interfaces.health import AgentPhase

if TYPE_CHECKING:
    from elastic_core.clock import Duration
    from elastic_core.interfaces.health import AgentStatus


class Probe(NamedTuple):
    """The answer: whether all is well, and why (not), in words."""

    ok: bool
    reason: str


def live(alive_at: float, now: float, timeout: Duration, watchdog_fault: str = "") -> Probe:
    """Whether the agent lives.

    Args:
        alive_at: when its loop last turned, seconds since the epoch.
        now: the same for the present.
        timeout: seconds without a turn after which it counts as stuck.
        watchdog_fault: why nobody watches the workers; empty while all is well.
    """
    silent = now - alive_at
    if silent > timeout:
        return Probe(False, f"stuck: the agent's loop has not turned for {silent:.0f} s, {timeout:g} s are allowed")
    if watchdog_fault:
        return Probe(False, f"nobody watches the workers: {watchdog_fault}")
    return Probe(True, "the agent's loop turns")


def ready(status: AgentStatus) -> Probe:
    """Whether its workers run."""
    reason = f"{status.phase.value}: {status.reason}" if status.reason else status.phase.value
    return Probe(status.phase is AgentPhase.RUNNING, reason)
