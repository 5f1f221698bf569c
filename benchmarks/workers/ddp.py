"""An ordinary DDP script, which trains a small model and records every optimizer step until it is killed.

It trains over gloo on the processor. With BENCHMARK_DEVICE=cuda it trains on a GPU, with BENCHMARK_BACKEND=nccl over
NCCL; the workers of all nodes share the GPUs of this machine.
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from steps import step_recorder
from torch.nn.parallel import DistributedDataParallel

# Real steps wait for data or an accelerator. Steps without a pause would slow down everything else on the processor.
PAUSE_S = 0.02


def chosen_device() -> torch.device:
    """The processor, or this worker's GPU; workers share the GPUs in turn."""
    if os.environ.get("BENCHMARK_DEVICE", "cpu") == "cpu":
        return torch.device("cpu")
    place = int(os.environ["BENCHMARK_NODE"]) * int(os.environ["LOCAL_WORLD_SIZE"]) + int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(place % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def main() -> None:
    torch.set_num_threads(1)
    device = chosen_device()
    dist.init_process_group(os.environ.get("BENCHMARK_BACKEND", "gloo"))
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(32, 8).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    record = step_recorder()
    while True:
        optimizer.zero_grad()
        model(torch.randn(16, 32, device=device)).pow(2).mean().backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()  # the step must be done, not just queued
        record()
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
