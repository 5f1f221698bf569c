"""An ordinary DDP script: a small model, gloo, a line for every step of the optimizer, until somebody ends it."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from steps import telling
from torch.nn.parallel import DistributedDataParallel

# Real steps wait for data or an accelerator; ones that only compete for the processor would slow down everything else.
PAUSE_S = 0.02


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tell = telling()
    while True:
        optimizer.zero_grad()
        model(torch.randn(16, 32)).pow(2).mean().backward()
        optimizer.step()
        tell()
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
