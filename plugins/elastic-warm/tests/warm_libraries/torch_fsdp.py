"""A few steps of FSDP2 with weights sharded over both workers, and a checkpoint."""

import probe

import torch
import torch.distributed
import torch.distributed.checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard

probe.imported("torch")
torch.manual_seed(0)
torch.distributed.init_process_group("gloo")
mesh = torch.distributed.init_device_mesh("cpu", (2,))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
torch.manual_seed(probe.RANK)
for step in range(4):
    loss = model(torch.randn(8, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    probe.result(f"loss {step}", loss.item())
probe.variable("mesh", [mesh.get_local_rank(), mesh.size(), str(model[0].weight.placements)])


def weights():
    return [parameter.to_local().double().sum().item() for parameter in model.parameters()]


probe.result("weights", weights())
saved = get_model_state_dict(model)
where = f"checkpoint-{probe.ROUND}"
torch.distributed.checkpoint.save(saved, checkpoint_id=where)
with torch.no_grad():
    for parameter in model.parameters():
        parameter.zero_()
loaded = get_model_state_dict(model)
torch.distributed.checkpoint.load(loaded, checkpoint_id=where)
set_model_state_dict(model, loaded)
probe.result("weights again", weights())
probe.end()
torch.distributed.destroy_process_group()
