"""An ordinary DDP script: a small model, gloo, a line for every step of the optimizer, until somebody ends it."""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# Real steps wait for data or an accelerator; ones that only compete for the processor would slow down everything else.
PAUSE_S = 0.02


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    lines = os.open(os.environ["BENCHMARK_STEPS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    identity = {
        "node": int(os.environ["BENCHMARK_NODE"]),
        "pid": os.getpid(),
        "rank": dist.get_rank(),
        "world_size": dist.get_world_size(),
        "restart": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
    }
    while True:
        optimizer.zero_grad()
        model(torch.randn(16, 32)).pow(2).mean().backward()
        optimizer.step()
        line = {"at": time.clock_gettime(time.CLOCK_BOOTTIME), **identity}
        os.write(lines, (json.dumps(line) + "\n").encode())  # One write, so that lines of several workers stay whole.
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
