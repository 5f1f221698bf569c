"""Does anything grow in a job whose agents are killed repeatedly?

Four nodes run over a TCPStore and over etcd. Each is a process with a rendezvous handler like that of `elastic run`;
the store is a separate process. Rounds end because a node reports a failed worker or, every `--every`th time, because
an agent gets SIGKILL, either while the round runs or just before the nodes join. An agent with the same name replaces
it. One node is never killed. It leads in one run and follows in the other, so that leaders are killed, too.

After 100, 500 and 1,000 rounds, the contents of the store and the resources of the surviving node's process are
measured. The last checkpoint is compared with the first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from time import monotonic

from benchmarks.fleet import START_LIMIT_S, helping
from benchmarks.job import WORKERS, BenchmarkError
from benchmarks.rendezvous import numbers
from benchmarks.report import Report, Row, main, parser

SERVERS = {"c10d": "store_server.py", "etcd": "etcd_server.py"}
MANNERS = {"leads": "the leader survives", "follows": "a follower survives"}
ROUND_S = 3.0  # more than a round takes, including late detection
# Allowed growth from the first to the last checkpoint. Stale entries of the last round may not be removed yet, and
# Python's and C's allocators get memory in pieces of a MiB or more.
FIGURES: dict[str, tuple[str, str, int]] = {
    "keys": ("in the store", "keys", 4),
    "bytes": ("in the store", "bytes", 4 * 1024),
    "leases": ("in the store", "leases", 2),
    "threads": ("in its process", "threads", 1),
    "descriptors": ("in its process", "descriptors", 2),
    "memory_kib": ("in its process", "KiB of memory", 4096),
}


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--backends", default="c10d,etcd", help="which (c10d,etcd)")
    made.add_argument(
        "--checkpoints", type=numbers, default=[100, 500, 1000], help="after how many rounds to measure (100,500,1000)"
    )
    made.add_argument("--every", type=int, default=10, help="kill an agent every N rounds (10)")
    made.add_argument("--seed", type=int, default=1, help="seed of all random choices (1)")
    return made


def endure(backend: str, manner: str, checkpoints: Sequence[int], every: int, seed: int) -> list[dict[str, int]]:
    """Measurements at each checkpoint. Raises BenchmarkError if no round forms for a minute."""
    limit = START_LIMIT_S + ROUND_S * checkpoints[-1]
    with helping([[str(WORKERS / SERVERS[backend])]]) as [server]:
        port = server.answer(monotonic() + START_LIMIT_S)
        rounds = ",".join(map(str, checkpoints))
        command = [str(WORKERS / "endurance.py"), backend, str(port), manner, str(every), str(seed), rounds]
        with helping([command]) as [job]:
            deadline = monotonic() + limit
            return [job.answer(deadline) for _ in checkpoints]


def rows(backend: str, manner: str, seen: Sequence[Mapping[str, int]]) -> list[Row]:
    """Rows with the last figure, earlier figures in a note, and whether it has grown."""
    first, *between, last = seen
    which = f"{backend}, {MANNERS[manner]}"
    found = [Row(f"{which}: killed", "agents", {"elastic": last["killed"]})]
    for name, (where, unit, margin) in FIGURES.items():
        if name in last:
            note = ", ".join(f"{each[name]} after {each['round']} rounds" for each in (first, *between))
            row = Row(f"{which}: {where}", unit, {"elastic": last[name]}, notes={"elastic": note})
            row.target, row.met = f"<= {first[name] + margin}", last[name] <= first[name] + margin
            found.append(row)
    return found


def measure(arguments: argparse.Namespace) -> Report:
    """Measure each backend, with a survivor that leads and with one that follows."""
    report = Report("endurance", {"every": arguments.every, "seed": arguments.seed})
    if len(arguments.checkpoints) < 2:
        raise BenchmarkError(f"--checkpoints needs at least two values, found {arguments.checkpoints}")
    for backend in arguments.backends.split(","):
        if backend not in SERVERS:
            raise BenchmarkError(f"unknown backend {backend!r} (known: {', '.join(SERVERS)})")
        for manner in MANNERS:
            seen = endure(backend, manner, arguments.checkpoints, arguments.every, arguments.seed)
            report.rows += rows(backend, manner, seen)
            report.measurements[f"{backend} {manner}"] = seen
            print(json.dumps({"backend": backend, "manner": manner, "seen": seen}), flush=True)
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))
