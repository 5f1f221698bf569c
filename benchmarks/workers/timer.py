"""A worker that acquires and releases timers as fast as it can: `python timer.py elastic|torchrun PIPE COUNT`.

It prints a line when it is ready, starts when it reads a line, and prints the microseconds of each round trip as JSON.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter


def main(launcher: str, pipe: str, count: int) -> None:
    """Measure round trips, each of which is an empty `with` block."""
    if launcher == "elastic":
        from elastic_file_timer import FileTimerClient, expires
    else:
        from torch.distributed.elastic.timer import FileTimerClient, expires
    client = FileTimerClient(pipe)
    with expires(600.0, "warm-up", client):
        pass
    print("ready", flush=True)
    sys.stdin.readline()
    took: list[float] = []
    error = ""
    try:
        for _ in range(count):
            begun = perf_counter()
            with expires(600.0, "step", client):
                pass
            took.append((perf_counter() - begun) * 1e6)
    except OSError as raised:
        error = f"{type(raised).__name__}: {raised}"
    print(json.dumps({"took": took, "error": error}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
