"""A small model with adapters of low rank."""

import probe

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertModel

probe.imported("peft")
torch.manual_seed(2)
shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
model = BertModel(BertConfig(vocab_size=32, max_position_embeddings=8, **shape))
model = get_peft_model(model, LoraConfig(r=2, target_modules=["query", "value"]))
optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.1)
for _ in range(3):
    loss = model(torch.randint(32, (2, 8))).last_hidden_state.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
probe.result("loss", loss.item())
probe.result("parameters", list(model.get_nb_trainable_parameters()))
probe.end()
