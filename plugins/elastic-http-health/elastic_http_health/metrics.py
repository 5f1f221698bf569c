"""Prometheus metrics: the agent's current status, totals over its lifetime, and the endpoint's own counters."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily as Counters
from prometheus_client.core import GaugeMetricFamily as Gauges
from prometheus_client.core import HistogramMetricFamily as Histograms
from prometheus_client.registry import Collector

from elastic_core.plugin import AgentPhase, CheckLevel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.core import Metric

    from elastic_core.plugin import AgentStatus, Recovery
    from elastic_http_health.document import Observation

    _Kind = type[Gauges] | type[Counters]
    _Samples = Iterable[tuple[Sequence[str], float]]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)  # bucket bounds in seconds
_CAUSES = ("failure", "hang", "node lost", "membership")
_PARTS = ("detect", "stop", "rendezvous", "start")
_STATES = ("running", "succeeded", "failed", "stopped")


@dataclass
class Counts:
    """The endpoint's own counters.

    Attributes:
        connections: currently open connections.
        most_connections: the maximum of `connections` so far.
        accepted: accepted connections.
        answers: responses by status code.
        closed: connections that were closed without a response, by reason.
    """

    connections: int = 0
    most_connections: int = 0
    accepted: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)


@dataclass
class Histogram:
    """A histogram of durations."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(_BOUNDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative buckets, as Prometheus expects them."""
        return list(zip((*map(str, _BOUNDS), "+Inf"), map(float, accumulate(self.counts)), strict=True))


class Totals:
    """Totals over the agent's lifetime. A status lists only the most recent rounds, so every status must be passed to
    `note`, in order. Rounds are not identified by their number alone, because numbers start from 1 again after a store
    has lost its data."""

    def __init__(self) -> None:
        self.recoveries: defaultdict[tuple[str, str], Histogram] = defaultdict(Histogram)
        self.rendezvous = Histogram()
        self._recoveries: set[Recovery] = set()
        self._rounds: set[tuple[int, float]] = set()

    def note(self, status: AgentStatus) -> None:
        """Add the new rounds and recoveries in this status to the totals."""
        for formed in status.rounds:
            if (formed.number, formed.formed_at) not in self._rounds:
                self.rendezvous.observe(formed.rendezvous)
        for recovery in status.recoveries:
            if recovery not in self._recoveries:
                for part in _PARTS:
                    self.recoveries[recovery.cause, part].observe(getattr(recovery, part))
        self._rounds = {(formed.number, formed.formed_at) for formed in status.rounds}
        self._recoveries = set(status.recoveries)


def exposition(seen: Observation, totals: Totals, counts: Counts) -> bytes:
    """Return the metrics in Prometheus's text format."""
    families = [*_agent(seen), *_rounds(seen.status), *_durations(totals), *_workers(seen), *_endpoint(counts)]
    return generate_latest(_Families(families))


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _gauge(name: str, text: str, value: float) -> Metric:
    return Gauges(f"elastic_{name}", text, value=value)


def _labelled(kind: _Kind, name: str, text: str, labels: str, samples: _Samples) -> Metric:
    family = kind(f"elastic_{name}", text, labels=labels.split())
    for names, value in samples:
        family.add_metric([name.encode("utf-8", "backslashreplace").decode() for name in names], value)
    return family


def _agent(seen: Observation) -> Iterator[Metric]:
    status = seen.status
    who = (status.run_id, status.node, status.role)
    yield _labelled(Gauges, "agent", "Always 1; the labels identify the agent.", "run_id node role", [(who, 1)])
    yield _gauge("alive", "1 if /livez is green.", seen.alive.ok)
    yield _gauge("ready", "1 if /readyz is green.", seen.ready.ok)
    phases = (([phase.value], phase is status.phase) for phase in AgentPhase)
    yield _labelled(Gauges, "phase", "1 for the agent's current phase, 0 for all others.", "phase", phases)
    yield _gauge("phase_start_timestamp_seconds", "Start of the phase, seconds since the epoch.", status.phase_since)
    if status.stop is not None:
        yield _gauge("stop_step", "The step after which all workers save.", status.stop.step)
        text = "Time at which workers that have not saved are killed, seconds since the epoch."
        yield _gauge("stop_deadline_timestamp_seconds", text, status.stop.deadline)
        yield _gauge("stop_unsaved", "Workers of this node that have not saved yet.", len(status.stop.unsaved))


def _rounds(status: AgentStatus) -> Iterator[Metric]:
    yield _gauge("round", "Number of the last round; 0 before the first round.", status.round)
    yield _gauge("members", "Nodes in the last round.", len(status.members))
    world = status.rounds[-1].world_size if status.rounds else 0
    yield _gauge("world_size", "Workers in the last round, on all nodes.", world)
    yield _gauge("group_rank", "Rank of this node in the last round; -1 before the first round.", status.group_rank)
    restarts = (([cause], count) for cause, count in {**dict.fromkeys(_CAUSES, 0), **dict(status.restarts)}.items())
    text = "Rounds that ended and were followed by another round, by cause."
    yield _labelled(Counters, "restarts", text, "cause", restarts)
    text = "Restarts of the job that count toward max_restarts."
    yield _gauge("restart_count", text, status.restart_count)
    yield _gauge("max_restarts", "Maximum number of restarts (--max-restarts).", status.max_restarts)


def _durations(totals: Totals) -> Iterator[Metric]:
    text = "How long this node waited for a round to form."
    yield Histograms("elastic_rendezvous_seconds", text, totals.rendezvous.buckets(), totals.rendezvous.total)
    text = "Time from the end of a round until the workers of the next round run, by part."
    recoveries = Histograms("elastic_recovery_seconds", text, labels=["cause", "part"])
    for cause_and_part, histogram in totals.recoveries.items():
        recoveries.add_metric(cause_and_part, histogram.buckets(), histogram.total)
    yield recoveries


def _workers(seen: Observation) -> Iterator[Metric]:
    workers = seen.status.workers
    states = (([state], sum(worker.state == state for worker in workers)) for state in _STATES)
    yield _labelled(Gauges, "workers", "Workers of this node in the last round, by state.", "state", states)
    running = [worker for worker in workers if worker.state == "running" and worker.pid in seen.usage]
    used = [((str(worker.global_rank), str(worker.local_rank)), seen.usage[worker.pid]) for worker in running]
    text, labels = "CPU time of a worker and its descendants.", "rank local_rank"
    cpu = ((ranks, usage.cpu_seconds) for ranks, usage in used)
    yield _labelled(Counters, "worker_cpu_seconds", text, labels, cpu)
    memory = ((ranks, usage.memory_bytes) for ranks, usage in used)
    text = "Resident memory of a worker and its descendants."
    yield _labelled(Gauges, "worker_memory_bytes", text, labels, memory)
    text = "Values in the rendezvous store that are not signed with the job's secret."
    yield Counters("elastic_rendezvous_not_signed", text, value=seen.not_signed)
    known = {check.name: check.result.level for check in seen.checks if check.result}  # two may have the same name
    levels = (([name, level.value], level is found) for name, found in known.items() for level in CheckLevel)
    yield _labelled(
        Gauges,
        "health_check",
        "1 for the level of a check's latest result.",
        "name level",
        levels,
    )
    if seen.template is not None and seen.template in seen.usage:
        text = "Resident memory of the process from which workers are forked."
        yield _gauge("template_memory_bytes", text, seen.usage[seen.template].memory_bytes)


def _endpoint(counts: Counts) -> Iterator[Metric]:
    yield _gauge("health_connections", "Open connections to this endpoint.", counts.connections)
    yield _gauge(
        "health_connections_most",
        "Maximum number of open connections so far.",
        counts.most_connections,
    )
    yield Counters("elastic_health_connections_accepted", "Accepted connections.", value=counts.accepted)
    answers = (([str(code)], count) for code, count in counts.answers.items())
    yield _labelled(Counters, "health_answers", "Responses, by status code.", "code", answers)
    closed = (([reason], count) for reason, count in counts.closed.items())
    what = "Connections closed without a response, by reason."
    yield _labelled(Counters, "health_connections_closed", what, "reason", closed)
