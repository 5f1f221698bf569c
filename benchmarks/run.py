"""Run several benchmarks with default settings one after the other, or a single one with its own options.

python -m benchmarks.run all
python -m benchmarks.run hello many_workers --json results.json
python -m benchmarks.run rendezvous --runs 3 --json rendezvous.json
"""

from __future__ import annotations

import argparse
import sys
from types import ModuleType

from benchmarks import (
    alarms,
    digits_kill,
    endurance,
    etcd,
    etcd_recovery,
    hangs,
    health,
    hello,
    losses,
    many_workers,
    paper,
    recovery,
    rendezvous,
    steady,
    stops,
    timer,
    warm,
)
from benchmarks.job import BenchmarkError
from benchmarks.report import conduct, machine_facts, parser, publish

BENCHMARKS: dict[str, ModuleType] = {
    "hello": hello,
    "many_workers": many_workers,
    "digits_kill": digits_kill,
    "rendezvous": rendezvous,
    "steady": steady,
    "alarms": alarms,
    "recovery": recovery,
    "warm": warm,
    "etcd": etcd,
    "hangs": hangs,
    "timer": timer,
    "health": health,
    "etcd_recovery": etcd_recovery,
    "losses": losses,
    "endurance": endurance,
    "paper": paper,
    "stops": stops,
}


def names(text: str) -> str:
    """Check the name of a benchmark."""
    if text != "all" and text not in BENCHMARKS:
        raise argparse.ArgumentTypeError(f"unknown benchmark {text!r} (known: all, {', '.join(BENCHMARKS)})")
    return text


def main() -> int:
    """Returns 1 if a benchmark could not measure. The other benchmarks run and are written nevertheless."""
    options = parser(__doc__)
    options.add_argument("benchmarks", nargs="+", type=names, metavar="NAME", help=f"all, {', '.join(BENCHMARKS)}")
    arguments, own_options = options.parse_known_args()
    if own_options and (len(arguments.benchmarks) != 1 or "all" in arguments.benchmarks):
        options.error(f"{' '.join(own_options)}: a benchmark's own options require a single benchmark")
    facts, reports, failed = machine_facts(), [], False
    for name in BENCHMARKS if "all" in arguments.benchmarks else arguments.benchmarks:
        module = BENCHMARKS[name]
        own = module.options().parse_args(["--launchers", arguments.launchers, *own_options])
        try:
            reports.append(conduct(module.measure, own))
        except BenchmarkError as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            failed = True
    publish(reports, facts, arguments.json)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
