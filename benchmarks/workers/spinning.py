"""Workers of which one stops making progress in the first round: `python spinning.py WAY DEVICE BACKEND WORK_S`.

- `kernel`: rank 1 waits for a kernel that does not end. Rank 0 works.
- `absent`: rank 1 sleeps instead of entering an all-reduce, in which rank 0 waits.
- `crossed`: rank 0 waits in an all-reduce of one group, rank 1 in one of another group.

All workers first work for WORK_S seconds and print lines in that time. Rank 1 prints when it stops. On a processor, the
kernel is a loop. The next round succeeds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

LINE_EVERY_S = 0.1
FOREVER_S = 1000.0
CYCLES = 10**18  # years


def now() -> float:
    """Seconds since boot, as in `benchmarks.processes`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def say(**facts: object) -> None:
    """Print a line of JSON in one write."""
    os.write(1, (json.dumps(facts) + "\n").encode())


def work(seconds: float) -> None:
    """Print lines for this time."""
    until = now() + seconds
    while now() < until:
        say(works=os.getpid())
        time.sleep(LINE_EVERY_S)


def place(device: str) -> Any:
    """This worker's device; workers share the GPUs in turn."""
    import torch

    if device == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def kernel(device: str, backend: str, work_s: float) -> None:
    """Rank 1 waits for a kernel."""
    if device == "cuda":
        import torch

        torch.ones(8, device=place(device)).sum().item()
    work(work_s)
    if os.environ["RANK"] == "0":
        work(FOREVER_S)
    say(stops=os.getpid(), at=now())
    while device == "cpu":
        pass
    torch.cuda._sleep(CYCLES)
    torch.cuda.synchronize()


def absent(device: str, backend: str, work_s: float) -> None:
    """Rank 1 does not enter an all-reduce."""
    import torch.distributed as dist

    tensor = meet(device, backend)
    work(work_s)
    if os.environ["RANK"] == "1":
        say(stops=os.getpid(), at=now())
        time.sleep(FOREVER_S)
    dist.all_reduce(tensor)
    finish(device)


def crossed(device: str, backend: str, work_s: float) -> None:
    """Each rank enters the all-reduce of another group."""
    import torch.distributed as dist

    tensor = meet(device, backend)
    groups = [dist.new_group(), dist.new_group()]
    for group in groups:
        dist.all_reduce(tensor, group=group)
    finish(device)
    work(work_s)
    rank = int(os.environ["RANK"])
    if rank:
        say(stops=os.getpid(), at=now())
    dist.all_reduce(tensor, group=groups[rank])
    finish(device)


def meet(device: str, backend: str) -> Any:
    """Form the group with one successful all-reduce, and return its tensor."""
    import torch
    import torch.distributed as dist

    where = place(device)
    dist.init_process_group(backend)
    tensor = torch.ones(8, device=where)
    dist.all_reduce(tensor)
    finish(device)
    return tensor


def finish(device: str) -> None:
    """Wait for the GPU, like a script that reads its loss."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


WAYS = {"kernel": kernel, "absent": absent, "crossed": crossed}


def main(way: str, device: str, backend: str, work_s: float) -> None:
    """Stop in the first round, and succeed in the next one."""
    round_ = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    say(runs=os.getpid(), round=round_, at=now())
    if not round_:
        WAYS[way](device, backend, work_s)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
