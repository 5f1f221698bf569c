"""Launches from Python: return values, logs in a folder, an error with its report, a launch within a worker."""

import os
import sys
import tempfile
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def well(text):
    print("said", os.environ["LOCAL_RANK"])
    return f"{text} {os.environ['RANK']} of {os.environ['WORLD_SIZE']}, role {os.environ['ROLE_NAME']}"


@record
def badly():
    raise ValueError("no samples")


@record
def inner():
    elastic_launch(config(1, max_restarts=0), badly)()


def config(workers, **more):
    return LaunchConfig(
        1, 1, workers, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="job", monitor_interval=0.1, **more
    )


if __name__ == "__main__":
    folder = tempfile.mkdtemp(dir=sys.argv[2])
    print(
        sorted(elastic_launch(config(2, logs_specs=DefaultLogsSpecs(folder, redirects=Std.OUT)), well)("hello").items())
    )
    print(sorted(path.read_text() for path in Path(folder).rglob("stdout.log")))
    for failing in (badly, inner, "false"):
        try:
            elastic_launch(config(1, max_restarts=0, start_method="forkserver"), failing)()
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            print(rank, failure.exitcode, failure.local_rank, "no samples" in str(error), sorted(error.failures))
