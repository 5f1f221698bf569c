"""How long do N agents need to form a round over etcd, how much load do they then put on etcd, and how much slower is
a store in etcd than plain etcd calls?

Agents join as in `rendezvous`, over one etcd on a disk in memory. Torchrun does not support current etcd versions, so
the figures are compared with our own limits only. In steady state, etcd counts the calls. Latencies are medians of
single operations, which alternate with the one etcd call that each of them needs at least.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.request
from time import monotonic

from benchmarks.fleet import PROCESSES, START_LIMIT_S, fleet, helping
from benchmarks.job import WORKERS, BenchmarkError
from benchmarks.rendezvous import formed, numbers, once, seconds_row
from benchmarks.report import Report, Row, main, parser

JOIN_TARGETS_S = {256: 2.0, 1000: 10.0}
LATENCY_TARGET = 1.3
LIMIT_S = 120
_RECEIVED = re.compile(r"^grpc_server_msg_received_total\{(.*)\} (\S+)$", re.MULTILINE)


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--nodes", type=numbers, default=[8, 256, 1000], help="N (8,256,1000)")
    made.add_argument("--apart", type=numbers, default=[256], help="N, each agent in its own process (256)")
    made.add_argument("--runs", type=int, default=3, help="runs of each N (3)")
    made.add_argument("--steady-nodes", type=int, default=64, help="agents whose calls are counted (64)")
    made.add_argument("--steady-seconds", type=float, default=20.0, help="how long to count calls (20)")
    made.add_argument("--operations", type=int, default=500, help="operations of each kind, for latencies (500)")
    return made


def join_row(nodes: int, runs: int, apart: bool = False) -> tuple[Row, list[float]]:
    """A row with the median and its limit."""
    joined = [once("elastic-etcd", nodes, LIMIT_S, apart) for _ in range(runs)]
    what = f"{nodes} agents joined{', each in its own process' if apart else ''}"
    row, seconds = seconds_row(what, {"elastic": joined}), formed(joined)
    if not apart and (limit := JOIN_TARGETS_S.get(nodes)) is not None:
        found = row.values["elastic"]
        row.target = f"<= {limit:g} s"
        row.met = len(seconds) == len(joined) and found is not None and found <= limit
    return row, seconds


def calls_so_far(port: int) -> dict[str, float]:
    """The number of calls that etcd has received, by method."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for labels, count in _RECEIVED.findall(text):
        method = re.search(r'grpc_method="(\w+)"', labels)
        if method:
            found[method[1]] = found.get(method[1], 0.0) + float(count)
    return found


def steady_row(nodes: int, seconds: float) -> tuple[Row, dict[str, float]]:
    """Calls per agent and second in steady state."""
    with fleet("elastic-etcd", nodes, LIMIT_S) as ready:
        joined = ready.join(LIMIT_S)
        if joined.errors:
            raise BenchmarkError("; ".join(joined.errors))
        time.sleep(5.0)  # until the agents' work after joining is done
        before, begun = calls_so_far(ready.port), monotonic()
        time.sleep(seconds)
        after, taken = calls_so_far(ready.port), monotonic() - begun
    rates = {name: (count - before.get(name, 0.0)) / nodes / taken for name, count in after.items()}
    moved = {name: rate for name, rate in rates.items() if rate > 0}
    by_method = ", ".join(f"{name} {rate:.3f}" for name, rate in sorted(moved.items(), key=lambda item: -item[1]))
    row = Row(
        f"{nodes} agents, steady: calls per agent",
        "1/s",
        {"elastic": sum(moved.values())},
        notes={"elastic": by_method},
    )
    row.target, row.met = "one renewal per interval (1 s)", sum(moved.values()) <= 1.05
    return row, moved


def latency_rows(operations: int) -> tuple[list[Row], dict[str, list[float]]]:
    """Rows that compare each operation with its plain call."""
    with helping([[str(WORKERS / "etcd_server.py")]]) as [server]:
        port = int(server.answer(monotonic() + START_LIMIT_S))
        command = [sys.executable, str(WORKERS / "etcd_latency.py"), str(port), str(operations)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise BenchmarkError(f"the latencies could not be measured:\n{done.stderr[-2000:]}")
    medians: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    rows = []
    for name, (ours, plain) in medians.items():
        row = Row(f"store: {name}", "ms", {"elastic": ours * 1000}, against=plain * 1000)
        row.target = f"<= {LATENCY_TARGET:g} times the plain call ({plain * 1000:.2f} ms)"
        row.met = ours <= LATENCY_TARGET * plain
        rows.append(row)
    return rows, medians


def measure(arguments: argparse.Namespace) -> Report:
    """Measure joining, steady state and latencies."""
    report = Report("etcd", {"runs": arguments.runs, "processes": PROCESSES})
    joined = {nodes: join_row(nodes, arguments.runs) for nodes in arguments.nodes}
    apart = {nodes: join_row(nodes, arguments.runs, apart=True) for nodes in arguments.apart}
    steady, rates = steady_row(arguments.steady_nodes, arguments.steady_seconds)
    latencies, medians = latency_rows(arguments.operations)
    report.rows = [*(row for row, _ in (*joined.values(), *apart.values())), steady, *latencies]
    report.measurements = {
        "seconds": {nodes: seconds for nodes, (_, seconds) in joined.items()},
        "seconds_apart": {nodes: seconds for nodes, (_, seconds) in apart.items()},
        "calls_per_agent_and_second": rates,
        "latency_seconds": medians,
    }
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))
