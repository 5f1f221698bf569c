"""A DataLoader with worker processes, forked and spawned."""

import os

import probe

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Samples(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, place):
        generator = torch.Generator().manual_seed(place)
        return torch.rand(2, generator=generator), get_worker_info().id, int(os.environ["RANK"]), torch.rand(1)


def main():
    probe.imported("torch")
    torch.manual_seed(3)
    for method in ("fork", "spawn", "forkserver"):
        for batch in DataLoader(Samples(), batch_size=4, num_workers=2, multiprocessing_context=method, shuffle=True):
            samples, worker, rank, drawn = batch
            probe.result(f"{method} {worker[0].item()}", [samples.sum().item(), rank.tolist(), drawn.sum().item()])
    for number in range(2):
        drawn = next(iter(DataLoader(Samples(), num_workers=1, generator=torch.Generator())))[3]
        probe.result(f"own generator {number}", drawn.item())
    probe.end()


if __name__ == "__main__":
    main()
