"""A function compiled by torch: traced by the compiler, and run without its C++ part."""

import probe

import torch

probe.imported("torch")
torch.manual_seed(1)


def curve(values):
    return torch.nn.functional.gelu(values * 2).sum(-1) + values.sin().mean()


values = torch.randn(4, 8)
for backend in ("eager", "aot_eager"):
    compiled = torch.compile(curve, backend=backend)
    probe.result(backend, compiled(values).tolist())
layer = torch.nn.Linear(8, 8)
probe.result("trained", torch.compile(layer, backend="aot_eager")(values).square().mean().item())
probe.result("counted", dict(torch._dynamo.utils.counters["stats"]))
probe.end()
