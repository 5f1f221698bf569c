"""Check elastic-core on a machine with one or more GPUs, and measure recovery there, in parts.

    python -m benchmarks.gpu --json gpu.json                    all parts, about 40 minutes
    python -m benchmarks.gpu heal warm --json gpu.json          two of them
    python -m benchmarks.page gpu.json                          write docs/project/benchmarks.md

- `heal`: a DDP job over NCCL, with a worker for each GPU. A worker is killed; time to the next step, cold, warm and
  with torchrun.
- `warm`: the template of a warm start never uses a GPU, its workers do, and restarts leave no memory in use.
- `count`: `--nproc-per-node=gpu` and `auto` start a worker for each GPU.
- `hangs`: a worker that spins in a kernel, or waits in a collective, is found.
- `shared`: `heal` with two workers on one GPU, over gloo.
- `recovery`: two agents with a worker each; a worker or a node is lost, or a third agent joins.
- `rendezvous`: 256 to 10,000 agents join together, as many as the machine allows. Needs no GPU.
- `campaign`: many jobs under a storm of faults. Needs root and network name spaces, and no GPU.

Each part runs in its own process, for `--limit` seconds at most. If it fails or takes too long, the next one still
runs. `--json` is written after each part, and keeps the parts that the file already has unless they run again. The exit
code is 1 if a check was not met or a part failed. Without a GPU, the parts that need one are skipped. `--device cpu`
rehearses them over gloo on the processor, and marks the results, which are no GPU figures.

The checkout need not be installed. Besides torch, this needs pluggy, psutil and structlog, installed or as wheels in
`--wheels`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.gpu.checkout import ROOT, MissingPackages, usable

NAMES = ("heal", "warm", "count", "hangs", "shared", "recovery", "rendezvous", "campaign")


def numbers(text: str) -> list[int]:
    """Parse comma-separated numbers."""
    return [int(part) for part in text.split(",")]


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(NAMES)} (all)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write results and machine facts to FILE")
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: rehearse the parts (cuda)")
    made.add_argument("--wheels", type=Path, default=ROOT / "wheels", help="folder of wheels (wheels, in the checkout)")
    made.add_argument("--limit", type=float, default=520.0, help="seconds for each part (520)")
    made.add_argument(
        "--tries", type=int, default=3, help="tries of each case in heal, shared, recovery, rendezvous (3)"
    )
    made.add_argument("--try-limit", type=float, default=60.0, help="seconds after which a try has failed (60)")
    made.add_argument("--restarts", type=int, default=20, help="restarts in warm (20)")
    made.add_argument("--warmup", type=float, default=30.0, help="seconds for the workers of hangs to start (30)")
    made.add_argument("--scenarios", type=lambda text: text.split(","), default=["worker", "node", "sigterm", "third"],
                      help="scenarios of recovery (worker,node,sigterm,third)")  # fmt: skip
    made.add_argument("--nodes", type=numbers, default=[], help="sizes of rendezvous (as many as the machine allows)")
    made.add_argument("--minutes", type=float, default=5.0, help="start no job of campaign after this time (5)")
    made.add_argument("--parallel", type=int, default=0, help="jobs of campaign at a time (2 per core)")
    made.add_argument("--keep", type=Path, default=Path("campaign"), help="folder for jobs with violations (campaign)")
    made.add_argument("--one", choices=NAMES, help=argparse.SUPPRESS)
    made.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    made.add_argument("--gpus", type=int, default=0, help=argparse.SUPPRESS)
    return made


def main() -> int:
    """Returns 1 if a check was not met, and 2 if packages are missing."""
    made = options()
    arguments = made.parse_args()
    if unknown := sorted(set(arguments.parts) - set(NAMES)):
        made.error(f"unknown parts: {', '.join(unknown)} (known: {', '.join(NAMES)})")
    try:
        with usable(arguments.wheels):
            from benchmarks.gpu import suite  # its imports may come from the wheels

            if arguments.one:
                return suite.run_one(arguments.one, arguments)
            return suite.run(arguments.parts or NAMES, arguments, sys.argv[1:])
    except MissingPackages as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
