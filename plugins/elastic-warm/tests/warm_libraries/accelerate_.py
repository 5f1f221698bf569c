"""A training loop prepared by accelerate."""

import probe

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

probe.imported("accelerate")
set_seed(6)
accelerator = Accelerator(cpu=True)
probe.variable("rank", [accelerator.process_index, accelerator.local_process_index, accelerator.num_processes])
probe.variable("main", [accelerator.is_main_process, accelerator.is_local_main_process])
model = torch.nn.Linear(8, 1)
samples = DataLoader(TensorDataset(torch.randn(32, 8), torch.randn(32, 1)), batch_size=4, shuffle=True)
model, optimizer, samples = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), samples)
for inputs, targets in samples:
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
probe.result("loss", loss.item())
probe.result("gathered", accelerator.gather(loss.detach().reshape(1)).tolist())
probe.end()
accelerator.end_training()
