"""How soon does a job of several nodes train again if its rendezvous uses etcd?

Runs the scenarios of `recovery` over an etcd on a disk in memory. Torchrun does not support current etcd versions, so
the figures are compared with the limits only. A lost node is noticed when its lease expires (5 s).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from time import monotonic

from benchmarks import recovery
from benchmarks.cluster import Meeting
from benchmarks.fleet import START_LIMIT_S, helping
from benchmarks.job import WORKERS, launchers
from benchmarks.recovery import SCENARIOS, run_scenario
from benchmarks.report import Report, main, parser


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--scenarios", type=recovery.scenarios, default=list(SCENARIOS), help="which (all)")
    made.add_argument("--runs", type=int, default=3, help="tries of each scenario (3)")
    made.add_argument("--limit", type=float, default=60.0, help="seconds after which a try is considered hung (60)")
    made.add_argument("--seed", type=int, default=1, help="seed of the pauses before disturbances (1)")
    return made


def measure(arguments: argparse.Namespace) -> Report:
    """Measure the chosen scenarios with elastic-core only."""
    arguments.launchers = "elastic"
    report = Report("etcd_recovery", {"limit": arguments.limit, "nproc_per_node": 1})
    commands = launchers(arguments)
    for name in arguments.scenarios:
        tries = run_scenario(name, commands, arguments, etcd)
        report.rows += recovery.rows(SCENARIOS[name], tries, arguments.limit)
        report.measurements[name] = {launcher: [asdict(one) for one in of_one] for launcher, of_one in tries.items()}
    return report


@contextmanager
def etcd() -> Iterator[Meeting]:
    """An etcd for one try. Every process that the try has started is stopped after it."""
    with helping([[str(WORKERS / "etcd_server.py")]]) as [server]:
        yield Meeting("etcd", int(server.answer(monotonic() + START_LIMIT_S)))


if __name__ == "__main__":
    sys.exit(main(measure, options()))
