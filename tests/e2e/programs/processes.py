"""Processes without an agent: functions that succeed, fail and hang, and a command."""

import os
import sys
import tempfile
import time
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes


def work(rank, what, said):
    if what != "hang":
        print("out", rank, os.environ["ME"])
        print("err", rank, file=sys.stderr)
    if what == "fail" and rank == 1:
        while not said.exists():
            time.sleep(0.01)
        raise ValueError("bad")
    if what != "end":
        said.touch()
        time.sleep(300)
    return rank * 2


def summary(failure):
    message = failure.message["message"] if isinstance(failure.message, dict) else failure.message.splitlines()[-1]
    return failure.local_rank, failure.exitcode, message, failure.signal_name()


if __name__ == "__main__":
    folder = tempfile.mkdtemp(dir=sys.argv[2])
    said = Path(folder, "said")
    envs = {0: {"ME": "a"}, 1: {"ME": "b"}}
    for what in ("end", "fail", "hang"):
        specs = DefaultLogsSpecs(folder, redirects=Std.ALL, tee={0: Std.OUT}, local_ranks_filter={0})
        context = start_processes(
            "trainer",
            work,
            {0: (0, what, said), 1: (1, what, said)},
            envs,
            specs,
            {0: "[zero]", 1: "[one]"},
            start_method="spawn" if what == "fail" else "forkserver",
        )
        result = context.wait(1 if what == "hang" else -1)
        print(what, len(context.pids()), result is None)
        context.close()
        if result is not None:
            print(result.is_failed(), result.return_values, {r: summary(f) for r, f in result.failures.items()})
            print([Path(path).read_text() for path in result.stdouts.values()])
            print([Path(path).read_text().splitlines()[0] for path in result.stderrs.values()])
    context = start_processes("command", "sh", {0: ("-c", "exit $ME")}, {0: {"ME": "3"}}, DefaultLogsSpecs())
    result = context.wait()
    context.close()
    print(result.is_failed(), {rank: failure.exitcode for rank, failure in result.failures.items()})
    files = {path.relative_to(folder) for path in Path(folder).rglob("*.*") if path.is_file()}
    print(sorted({str(Path(*path.parts[1:])) for path in files}))
