"""How long do N agents need to form a round if all join together?

The N agents are threads in 8 processes, a TCPStore is a separate process, and min = max = N. All run on this machine.
Threads of a process wait for its interpreter lock. With `--apart`, each agent has its own process, as in a job.
Handlers are connected beforehand. The time runs from the start of the first join to the return of the last one. All
agents must get the same members, and ranks 0 to N - 1.

Ratios compare with torchrun at the same N, or at the largest N below it that torchrun was measured with.
`--signed-nodes` compares elastic-core with and without a secret, in turn. `--late-nodes` measures elastic-core with
handlers that connect when they join, as in `elastic run`. `--torchrun-fails-at 512` shows how torchrun fails beyond its
limit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from benchmarks.fleet import PROCESSES, Joined, fleet
from benchmarks.job import BenchmarkError, launchers
from benchmarks.report import Report, Row, main, median, parser

# Limits for elastic-core, as a share of torchrun's time at the same N, or at 256.
TARGETS = {8: 0.1, 256: 0.08, 512: 0.15, 1024: 0.5}
SIGNED = 1.1  # limit with a secret, as a share of the time without
LIMIT_BEYOND_JOIN_S = 60


def numbers(text: str) -> list[int]:
    """Parse comma-separated numbers of agents; returns them in ascending order."""
    found = sorted({int(part) for part in text.split(",") if part})
    if found and found[0] < 1:
        raise argparse.ArgumentTypeError(f"{found[0]} is not a number of agents")
    return found


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--nodes", type=numbers, default=[8, 256, 512, 1024], help="N for elastic (8,256,512,1024)")
    made.add_argument("--torchrun-nodes", type=numbers, default=[8, 256], help="N for torchrun (8,256)")
    made.add_argument(
        "--late-nodes",
        type=numbers,
        default=[256],
        help="N for elastic with handlers that connect when they join (256)",
    )
    made.add_argument(
        "--signed-nodes", type=numbers, default=[8, 256, 1024], help="N for elastic with a secret (8,256,1024)"
    )
    made.add_argument("--apart", type=numbers, default=[256], help="N for elastic, each in its own process (256)")
    made.add_argument("--runs", type=int, default=10, help="runs of each N (10)")
    made.add_argument("--join-timeout", type=int, default=300, help="join timeout of both launchers in seconds (300)")
    made.add_argument("--torchrun-fails-at", type=numbers, default=[], help="N at which to show that torchrun fails")
    made.add_argument(
        "--fail-timeout", type=int, default=60, help="join timeout for --torchrun-fails-at in seconds (60)"
    )
    return made


def once(launcher: str, nodes: int, join_timeout_s: int, apart: bool = False) -> Joined:
    """Form one round of new agents over a new store. If `apart` is true, each agent has its own process."""
    try:
        with fleet(launcher, nodes, join_timeout_s, apart=apart) as ready:
            joined = ready.join(join_timeout_s + LIMIT_BEYOND_JOIN_S)
    except BenchmarkError as error:
        print(error, file=sys.stderr)  # in full; a table has room for its first line only
        joined = Joined(join_timeout_s + LIMIT_BEYOND_JOIN_S, (str(error).partition("\n")[0],))
    outcome = "; ".join(joined.errors) or "all joined and agree"
    print(f"{launcher} N={nodes}: {joined.seconds:.3f} s, {outcome}", flush=True)
    return joined


def formed(runs: Sequence[Joined]) -> list[float]:
    """The times of the runs in which all joined."""
    return [run.seconds for run in runs if not run.errors]


def seconds_row(what: str, runs: Mapping[str, Sequence[Joined]], against: float | None = None) -> Row:
    """A row with the time until all agents had joined."""
    return Row.measured(
        what,
        "s",
        {name: formed(of_one) for name, of_one in runs.items()},
        made={name: len(of_one) for name, of_one in runs.items()},
        notes={name: failures(of_one) for name, of_one in runs.items()},
        against=against,
    )


def failures(runs: Sequence[Joined]) -> str:
    """Return the number of failed runs and the first one's errors, or an empty string if none failed."""
    failed = [run for run in runs if run.errors]
    return f"{len(failed)} of {len(runs)} failed: {'; '.join(failed[0].errors)}" if failed else ""


def reference(times: Mapping[int, float | None], nodes: int) -> int | None:
    """Return torchrun's N for a comparison with `nodes` agents: the largest one that is at most `nodes`."""
    return max((measured for measured, time in times.items() if measured <= nodes and time is not None), default=None)


def row(nodes: int, runs: Mapping[str, Mapping[int, Sequence[Joined]]]) -> Row:
    """A row with the medians for one N, compared with torchrun at the same N or below."""
    made = seconds_row(f"{nodes} agents joined", {name: of_n[nodes] for name, of_n in runs.items() if nodes in of_n})
    stock = {measured: median(formed(of_n)) for measured, of_n in runs.get("torchrun", {}).items()}
    compared = reference(stock, nodes)
    elsewhere = compared is not None and compared != nodes
    if compared is not None and elsewhere:
        made.against = stock[compared]
    if (limit := TARGETS.get(nodes)) is not None:
        made.target = f"ratio <= {limit:.2f}" + (f" (to torchrun's {compared})" if elsewhere else "")
        made.met = within(made, limit)
    return made


def within(row: Row, limit: float) -> bool | None:
    """Whether the ratio is within the limit; False if elastic-core failed."""
    if "elastic" in row.notes:
        return False
    return None if (ratio := row.ratio()) is None else ratio <= limit


def rows(runs: Mapping[str, Mapping[int, Sequence[Joined]]]) -> list[Row]:
    """A row for each N."""
    return [row(nodes, runs) for nodes in sorted({measured for of_one in runs.values() for measured in of_one})]


def apart_row(nodes: int, runs: Sequence[Joined]) -> Row:
    """A row for elastic-core with each agent in its own process."""
    return seconds_row(f"{nodes} agents joined, each in its own process", {"elastic": runs})


def late_row(nodes: int, runs: Sequence[Joined]) -> Row:
    """A row for elastic-core that includes the time to connect."""
    return seconds_row(f"{nodes} agents connected and joined", {"elastic": runs})


def signed_row(nodes: int, signed: Sequence[Joined], plain: Sequence[Joined]) -> Row:
    """A row with a secret, compared with runs without one in the same measurement."""
    made = seconds_row(f"{nodes} agents joined, signed", {"elastic": signed}, median(formed(plain)))
    made.target = f"ratio <= {SIGNED:.2f} (to no secret)"
    made.met = within(made, SIGNED)
    return made


def signed_rows(nodes: Sequence[int], runs: int, join_timeout_s: int) -> list[Row]:
    """Measure with and without a secret in turn."""
    rows = []
    for number in nodes:
        names = ("elastic-signed", "elastic")
        pairs = [[once(name, number, join_timeout_s) for name in names] for _ in range(runs)]
        rows.append(signed_row(number, [pair[0] for pair in pairs], [pair[1] for pair in pairs]))
    return rows


def failure_row(nodes: int, joined: Joined, timeout_s: int) -> Row:
    """A row with torchrun's errors at more agents than it supports."""
    outcome = "; ".join(joined.errors) or f"all joined after {joined.seconds:.1f} s"
    return Row(f"{nodes} agents, join timeout {timeout_s} s", "s", {}, notes={"torchrun": outcome})


def compare(arguments: argparse.Namespace) -> dict[str, dict[int, list[Joined]]]:
    """All runs, by launcher and N. The launchers alternate, so that a change in the machine's load affects both."""
    sizes = {"elastic": arguments.nodes, "torchrun": arguments.torchrun_nodes}
    asked = {name: sizes[name] for name in launchers(arguments)}
    runs: dict[str, dict[int, list[Joined]]] = {name: {nodes: [] for nodes in asked[name]} for name in asked}
    for nodes in sorted({nodes for of_one in asked.values() for nodes in of_one}):
        for _ in range(arguments.runs):
            for name in (name for name in asked if nodes in asked[name]):
                runs[name][nodes].append(once(name, nodes, arguments.join_timeout))
    return runs


def measure(arguments: argparse.Namespace) -> Report:
    """Measure both launchers, then elastic-core's other cases, and torchrun beyond its limit if requested."""
    runs = compare(arguments)
    late = {
        nodes: [once("elastic-late", nodes, arguments.join_timeout) for _ in range(arguments.runs)]
        for nodes in (arguments.late_nodes if "elastic" in runs else [])
    }
    apart = {
        nodes: [once("elastic", nodes, arguments.join_timeout, apart=True) for _ in range(arguments.runs)]
        for nodes in (arguments.apart if "elastic" in runs else [])
    }
    beyond = {nodes: once("torchrun", nodes, arguments.fail_timeout) for nodes in arguments.torchrun_fails_at}
    report = Report("rendezvous", {"processes": PROCESSES})
    report.rows = rows(runs)
    report.rows += [late_row(nodes, of_n) for nodes, of_n in late.items()]
    report.rows += [apart_row(nodes, of_n) for nodes, of_n in apart.items()]
    report.rows += signed_rows(
        arguments.signed_nodes if "elastic" in runs else [], arguments.runs, arguments.join_timeout
    )
    report.rows += [failure_row(nodes, joined, arguments.fail_timeout) for nodes, joined in beyond.items()]
    report.measurements = {
        "seconds": {
            name: {nodes: [run.seconds for run in of_n if not run.errors] for nodes, of_n in of_one.items()}
            for name, of_one in {**runs, "elastic-late": late, "elastic-apart": apart}.items()
        },
        "beyond": {nodes: {"seconds": joined.seconds, "errors": joined.errors} for nodes, joined in beyond.items()},
    }
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))
