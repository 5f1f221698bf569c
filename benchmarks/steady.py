"""How much do N idle agents load the store?

Agents join as in `rendezvous`, and then act as agents do while their workers run. Torchrun's agent asks for waiting
nodes every 0.1 s (its handler forwards one call in ten). The agent of elastic-core asks only if its handler sends no
notifications. The benchmark measures for `--seconds`:

- Requests to the store: segments with payload from agents to the store, as counted by the kernel. A TCPStore client
  sends each request separately, so segments equal requests. `get` is two requests: wait for the key, then read it.
  Several `set` in a row may share a segment.
- Bytes: payload in both directions, between agents and store and between agents.
- Processor time of the store, and of all agents together, as a share of one core.

Each try has a new store and new agents. All settings are the launchers' defaults.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.fleet import Fleet, Traffic, fleet, traffic_between
from benchmarks.job import BenchmarkError, launchers
from benchmarks.rendezvous import LIMIT_BEYOND_JOIN_S, numbers
from benchmarks.report import Report, Row, main, parser

REQUESTS_PER_S, BYTES_PER_S = 2.0, 2000.0
TARGETS_HOLD_FOR = 256
SETTLE_S = 5.0


@dataclass(frozen=True)
class Watched:
    """Measurements of one try. Processor times are shares of one core in percent."""

    nodes: int
    seconds: float
    polled: int
    traffic: Traffic
    store_cpu: float
    agents_cpu: float

    @property
    def requests_per_s(self) -> float:
        """Requests of one agent."""
        return self.traffic.requests / self.seconds / self.nodes

    @property
    def bytes_per_s(self) -> float:
        """Payload of one agent."""
        return (self.traffic.up + self.traffic.down + self.traffic.other) / self.seconds / self.nodes


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--nodes", type=numbers, default=[64, 256], help="N for elastic (64,256)")
    made.add_argument("--torchrun-nodes", type=numbers, default=[64, 256], help="N for torchrun (64,256)")
    made.add_argument("--seconds", type=float, default=10.0, help="how long to watch (10)")
    made.add_argument("--runs", type=int, default=10, help="tries of each N (10)")
    made.add_argument("--join-timeout", type=int, default=300, help="join timeout of both launchers in seconds (300)")
    return made


def watch(agents: Fleet, seconds: float) -> Watched:
    """Watch the agents for this time."""
    polled = agents.follow()
    time.sleep(SETTLE_S)
    before, cpu_before, at = agents.look(), agents.cpu(), time.monotonic()
    time.sleep(seconds)
    after, cpu_after, took = agents.look(), agents.cpu(), time.monotonic() - at
    store_cpu, agents_cpu = (100 * (end - start) / took for start, end in zip(cpu_before, cpu_after, strict=True))
    traffic = traffic_between(before, after, agents.port)
    return Watched(agents.nodes, took, polled, traffic, store_cpu, agents_cpu)


def once(launcher: str, nodes: int, arguments: argparse.Namespace) -> Watched:
    """Let new agents join, and watch them."""
    with fleet(launcher, nodes, arguments.join_timeout) as agents:
        joined = agents.join(arguments.join_timeout + LIMIT_BEYOND_JOIN_S)
        if joined.errors:
            raise BenchmarkError(f"{nodes} agents of {launcher}: " + "; ".join(joined.errors))
        seen = watch(agents, arguments.seconds)
    print(
        f"{launcher} N={nodes}: {seen.requests_per_s:.2f} requests/s and {seen.bytes_per_s:.0f} bytes/s per agent, "
        f"{seen.traffic.connections} connections to the store",
        flush=True,
    )
    return seen


def bounded(row: Row, limit: float, nodes: int) -> Row:
    """The row, with a target if it has the N to which the target applies."""
    if nodes == TARGETS_HOLD_FOR:
        ours = row.values.get("elastic")
        row.target = f"<= {limit:g}"
        row.met = None if ours is None else ours <= limit
    return row


def rows(nodes: int, seen: Mapping[str, Sequence[Watched]]) -> list[Row]:
    """All rows for one N."""

    def row(what: str, unit: str, figure: Callable[[Watched], float]) -> Row:
        return Row.measured(
            f"{nodes} agents: {what}", unit, {name: [figure(one) for one in of_one] for name, of_one in seen.items()}
        )

    return [
        bounded(row("requests to the store", "/s per agent", lambda one: one.requests_per_s), REQUESTS_PER_S, nodes),
        bounded(row("payload", "bytes/s per agent", lambda one: one.bytes_per_s), BYTES_PER_S, nodes),
        row("connections to the store", "per agent", lambda one: one.traffic.connections / nodes),
        row("store's processor time", "% of a core", lambda one: one.store_cpu),
        row("agents' processor time", "% of a core", lambda one: one.agents_cpu),
    ]


def measure(arguments: argparse.Namespace) -> Report:
    """Measure each N, alternating between the launchers."""
    sizes = {"elastic": arguments.nodes, "torchrun": arguments.torchrun_nodes}
    asked = {name: sizes[name] for name in launchers(arguments)}
    report = Report("steady", {"seconds": arguments.seconds})
    seen: dict[str, list[Watched]] = {name: [] for name in asked}
    for nodes in sorted({nodes for of_one in asked.values() for nodes in of_one}):
        here: dict[str, list[Watched]] = {name: [] for name in asked if nodes in asked[name]}
        for _ in range(arguments.runs):
            for name in here:
                here[name].append(once(name, nodes, arguments))
        report.rows += rows(nodes, here)
        for name, of_one in here.items():
            seen[name] += of_one
    report.measurements = {name: as_dicts(all_) for name, all_ in seen.items()}
    return report


def as_dicts(seen: Sequence[Watched]) -> list[dict[str, object]]:
    """The measurements for JSON."""
    return [asdict(one) for one in seen]


if __name__ == "__main__":
    sys.exit(main(measure, options()))
