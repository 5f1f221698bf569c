"""Records a worker's optimizer steps in the file that BENCHMARK_STEPS names."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable


def step_recorder() -> Callable[[], None]:
    """A function to call after each step of this process."""
    lines = os.open(os.environ["BENCHMARK_STEPS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    identity = {
        "node": int(os.environ["BENCHMARK_NODE"]),
        "pid": os.getpid(),
        "rank": int(os.environ["RANK"]),
        "world_size": int(os.environ["WORLD_SIZE"]),
        "restart": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "group": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    }

    def record() -> None:
        line = {"at": time.clock_gettime(time.CLOCK_BOOTTIME), **identity}
        os.write(lines, (json.dumps(line) + "\n").encode())  # one write, so that lines of several workers do not mix

    return record
