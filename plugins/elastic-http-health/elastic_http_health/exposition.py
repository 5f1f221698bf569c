"""The metrics, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from elastic_core.interfaces.health import AgentPhase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

    from elastic_core.interfaces.health import AgentStatus
    from elastic_http_health.counts import Counts
    from elastic_http_health.totals import Totals
    from elastic_http_health.usage import Usage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CAUSES = ("failure", "hang", "membership")
_STATES = ("running", "succeeded", "failed", "stopped")


class Sight(NamedTuple):
    """All that there is to tell at one moment."""

    status: AgentStatus
    alive: bool
    ready: bool
    usage: Mapping[int, Usage]
    totals: Totals
    counts: Counts


def exposition(sight: Sight) -> bytes:
    """The metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(sight))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, sight: Sight) -> None:
        self._sight = sight

    def collect(self) -> Iterator[Metric]:
        yield from _agent(self._sight)
        yield from _rounds(self._sight.status)
        yield from _durations(self._sight.totals)
        yield from _workers(self._sight.status, self._sight.usage)
        yield from _endpoint(self._sight.counts)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"elastic_{name}", text, value=value)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"elastic_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"elastic_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _agent(sight: Sight) -> Iterator[Metric]:
    status = sight.status
    info = GaugeMetricFamily("elastic_agent", "Always 1; says which agent this is.", labels=["run_id", "node", "role"])
    info.add_metric([_plain(status.run_id), _plain(status.node), _plain(status.role)], 1)
    yield info
    yield _gauge("alive", "1 if /livez is green.", sight.alive)
    yield _gauge("ready", "1 if /readyz is green.", sight.ready)
    phases = {phase.value: float(phase is status.phase) for phase in AgentPhase}
    yield _gauges("phase", "1 for what the agent does now, 0 for the rest.", "phase", phases)
    yield _gauge("phase_start_timestamp_seconds", "When the phase began, seconds since the epoch.", status.phase_since)


def _rounds(status: AgentStatus) -> Iterator[Metric]:
    yield _gauge("round", "Number of the last round; 0 before the first.", status.round)
    yield _gauge("members", "Nodes of the last round.", len(status.members))
    world = status.rounds[-1].world_size if status.rounds else 0
    yield _gauge("world_size", "Workers of the last round, on all nodes.", world)
    yield _gauge("group_rank", "Rank of this node in it; -1 before the first.", status.group_rank)
    restarts = {**dict.fromkeys(CAUSES, 0), **dict(status.restarts)}
    yield _counters("restarts", "Rounds that ended with another one to follow, by cause.", "cause", restarts)
    yield _gauge(
        "restart_count", "Restarts that count against the budget, as the whole job counts.", status.restart_count
    )
    yield _gauge("max_restarts", "The budget.", status.max_restarts)


def _durations(totals: Totals) -> Iterator[Metric]:
    rendezvous = HistogramMetricFamily("elastic_rendezvous_seconds", "How long this node waited for a round to form.")
    rendezvous.add_metric([], totals.rendezvous.buckets(), totals.rendezvous.total)
    yield rendezvous
    recoveries = HistogramMetricFamily(
        "elastic_recovery_seconds",
        "From the end of one round until the workers of the next one ran, in parts.",
        labels=["cause", "part"],
    )
    for (cause, part), histogram in totals.recoveries.items():
        recoveries.add_metric([cause, part], histogram.buckets(), histogram.total)
    yield recoveries


def _workers(status: AgentStatus, usage: Mapping[int, Usage]) -> Iterator[Metric]:
    states = {state: float(sum(worker.state == state for worker in status.workers)) for state in _STATES}
    yield _gauges("workers", "Workers of this node in the last round, by state.", "state", states)
    labels = ["rank", "local_rank"]
    cpu = CounterMetricFamily(
        "elastic_worker_cpu_seconds", "Processor time of a worker and its descendants.", labels=labels
    )
    memory = GaugeMetricFamily(
        "elastic_worker_memory_bytes", "Resident memory of a worker and its descendants.", labels=labels
    )
    for worker in status.workers:
        used = usage.get(worker.pid)
        if used is not None and worker.state == "running":
            names = [str(worker.global_rank), str(worker.local_rank)]
            cpu.add_metric(names, used.cpu_seconds)
            memory.add_metric(names, used.memory_bytes)
    yield cpu
    yield memory


def _endpoint(counts: Counts) -> Iterator[Metric]:
    yield _gauge("health_connections", "Connections to this endpoint that are open.", counts.connections)
    yield _gauge("health_connections_most", "That were open at a time.", counts.most_connections)
    yield CounterMetricFamily("elastic_health_connections_accepted", "Accepted.", value=counts.accepted)
    answers = {str(code): float(count) for code, count in counts.answers.items()}
    yield _counters("health_answers", "Answers, by status code.", "code", answers)
    closed = {reason: float(count) for reason, count in counts.closed.items()}
    yield _counters("health_connections_closed", "Closed without an answer, by reason.", "reason", closed)


def _plain(text: str) -> str:
    """What can be written as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
