"""A Trainer with a small random model, and its tokens."""

import probe

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

probe.imported("transformers")
set_seed(2)
shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
model = BertForSequenceClassification(BertConfig(vocab_size=32, max_position_embeddings=8, **shape))
samples = [{"input_ids": torch.randint(32, (8,)), "labels": torch.tensor(place % 2)} for place in range(64)]
arguments = TrainingArguments(
    probe.folder(), max_steps=5, save_strategy="no", per_device_train_batch_size=2, use_cpu=True, report_to=[],
    disable_tqdm=True, logging_steps=1,
)  # fmt: skip
probe.variable("rank", [arguments.process_index, arguments.local_process_index, arguments.world_size])
trainer = Trainer(model, arguments, train_dataset=samples)
trainer.train()
probe.result("losses", [line["loss"] for line in trainer.state.log_history if "loss" in line])
probe.result("weights", sum(parameter.double().sum().item() for parameter in model.parameters()))
probe.end()
torch.distributed.destroy_process_group()
