"""A few steps of DistributedDataParallel, with a sampler."""

import probe

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

probe.imported("torch")
probe.random("default", torch.rand(1).item())
probe.random("seed", torch.seed())
torch.manual_seed(0)
torch.distributed.init_process_group("gloo")
probe.variable("rank", [torch.distributed.get_rank(), torch.distributed.get_world_size()])
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
samples = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
sampler = DistributedSampler(samples, seed=1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(samples, batch_size=8, sampler=sampler):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    probe.result(f"loss {epoch}", loss.item())
probe.result("weights", sum(parameter.double().sum().item() for parameter in model.parameters()))
probe.end()
torch.distributed.destroy_process_group()
