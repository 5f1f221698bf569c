"""A worker of a campaign that trains with DDP over gloo and writes the same history as the cheap worker. It fails
immediately when it loses a peer, as real programs do."""

from __future__ import annotations

import os
import sys
import time

import torch
from elastic_testing.campaign.worker import SAVED_EVERY, STEP_S, main, save, saved, tell
from torch import distributed


def train(rank: int, world: int, folder: str) -> int:
    """Train until all ranks have been asked to finish. Returns the exit code."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    begin = torch.tensor([int.from_bytes(os.urandom(6), "big"), saved(folder)])
    distributed.broadcast(begin, 0)
    group, step = f"{int(begin[0]):x}", int(begin[1])
    tell("met", group=group, rank=rank, world=world, step=step)
    first = step + 1
    while True:
        step += 1
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        shared = torch.tensor([1 << rank, int(os.path.exists(os.path.join(folder, "finish")))])
        distributed.all_reduce(shared)
        if rank == 0 or step == first:
            tell("step", group=group, rank=rank, step=step, sum=int(shared[0]))
        if rank == 0 and step % SAVED_EVERY == 0:
            save(folder, step)
            tell("saved", group=group, step=step)
        if shared[1]:
            return 0  # without destroy_process_group, in which a rank of gloo may wait forever
        time.sleep(STEP_S)


if __name__ == "__main__":
    code = main(train, says=False)
    sys.stdout.flush()
    os._exit(code)  # a thread of gloo may still release the last tensor
