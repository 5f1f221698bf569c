"""The real worker of a campaign: DDP over gloo, with the history of the cheap one. It fails at once when it loses a
peer, as real programs do."""

from __future__ import annotations

import os
import sys
import time

import torch
from elastic_testing.campaign.worker import SAVED_EVERY, STEP_S, main, save, saved, tell
from torch import distributed


def train(rank: int, world: int, folder: str) -> int:
    """Steps of DDP until all have been asked to finish; its exit code."""
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
        told = torch.tensor([1 << rank, int(os.path.exists(os.path.join(folder, "finish")))])
        distributed.all_reduce(told)
        if rank == 0 or step == first:
            tell("step", group=group, rank=rank, step=step, sum=int(told[0]))
        if rank == 0 and step % SAVED_EVERY == 0:
            save(folder, step)
            tell("saved", group=group, step=step)
        if told[1]:
            return 0  # without a word to the others: in gloo's goodbye one of them may wait for ever
        time.sleep(STEP_S)


if __name__ == "__main__":
    code = main(train, says=False)
    sys.stdout.flush()
    os._exit(code)  # a thread of gloo may still let go of the last tensor
