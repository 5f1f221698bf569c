"""Is a live agent ever declared lost?

Agents of elastic-core join as in `rendezvous` and send heartbeats while other processes keep every core busy. No agent
exits, so each round that ends is a false alarm; the agents then start over for the remaining time. `--conf` sets the
heartbeat interval and how many heartbeats may be missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.fleet import fleet
from benchmarks.job import BenchmarkError
from benchmarks.rendezvous import LIMIT_BEYOND_JOIN_S, numbers
from benchmarks.report import Report, Row, main, parser

LOOK_EVERY_S = 5.0


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--nodes", type=numbers, default=[256, 1000], help="N (256,1000)")
    made.add_argument("--minutes", type=float, default=60.0, help="minutes for each N (60)")
    made.add_argument("--load", type=int, default=os.cpu_count() or 1, help="busy processes (one per core)")
    made.add_argument("--conf", default="", help="rendezvous options, as in --rdzv-conf (defaults)")
    made.add_argument("--join-timeout", type=int, default=300, help="in seconds (300)")
    return made


@contextmanager
def computing(processes: int) -> Iterator[None]:
    """Run this many busy processes during the block."""
    made = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in made:
            process.kill()
            process.wait()


def watch(nodes: int, until: float, arguments: argparse.Namespace) -> tuple[float, list[str]]:
    """Run one round. Returns its duration in seconds, and the reason if it ended before `until`."""
    with fleet("elastic", nodes, arguments.join_timeout, arguments.conf) as agents:
        joined = agents.join(arguments.join_timeout + LIMIT_BEYOND_JOIN_S)
        if joined.errors:
            raise BenchmarkError(f"{nodes} agents: " + "; ".join(joined.errors))
        begun = time.monotonic()
        with computing(arguments.load):
            while (now := time.monotonic()) < until:
                time.sleep(min(LOOK_EVERY_S, until - now))
                if ended := agents.ended():
                    return time.monotonic() - begun, sorted(set(ended))
        return time.monotonic() - begun, []


def measure(arguments: argparse.Namespace) -> Report:
    """Watch each N for `--minutes`."""
    report = Report("alarms", {"minutes": arguments.minutes, "load": arguments.load, "conf": arguments.conf})
    for nodes in arguments.nodes:
        until, watched, alarms = time.monotonic() + 60 * arguments.minutes, 0.0, []
        while time.monotonic() < until:
            seconds, reasons = watch(nodes, until, arguments)
            watched += seconds
            alarms += [{"after": watched, "reasons": reasons}] if reasons else []
            print(f"{nodes} agents: {len(alarms)} false alarms in {watched:.0f} s {reasons}", flush=True)
        notes = {"elastic": f"in {watched / 60:.0f} minutes"}
        report.rows.append(
            Row(f"{nodes} agents: false alarms", "rounds", {"elastic": len(alarms)}, "0", met=not alarms, notes=notes)
        )
        report.measurements[str(nodes)] = {"seconds": watched, "alarms": alarms}
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))
