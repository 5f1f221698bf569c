"""Tensors in a file."""

import os

import probe

import torch
from safetensors.torch import load_file, save_file

probe.imported("safetensors")
torch.manual_seed(9)
path = os.path.join(probe.folder(), "weights")
save_file({"weight": torch.randn(16, 16)}, path, metadata={"rank": str(probe.RANK)})
probe.result("weights", load_file(path)["weight"].double().sum().item())
probe.end()
