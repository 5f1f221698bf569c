"""A metric over both workers."""

import probe

import torch
import torch.distributed
from torchmetrics.classification import BinaryAccuracy

probe.imported("torchmetrics")
torch.distributed.init_process_group("gloo")
torch.manual_seed(probe.RANK)
metric = BinaryAccuracy()
metric.update(torch.rand(50), torch.randint(2, (50,)))
probe.result("accuracy", metric.compute().item())
probe.end()
torch.distributed.destroy_process_group()
