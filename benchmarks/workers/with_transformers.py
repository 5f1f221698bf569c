"""A training with the Trainer of transformers: a tiny model of random weights, until somebody ends it."""

from __future__ import annotations

import time
from typing import Any

import torch
from steps import telling
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

PAUSE_S = 0.02
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


class Telling(TrainerCallback):
    """After each step."""

    def __init__(self) -> None:
        self.tell = telling()

    def on_step_end(self, *_: Any, **more: Any) -> None:
        """It is made."""
        self.tell()
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = BertForSequenceClassification(BertConfig(vocab_size=32, max_position_embeddings=8, **SHAPE))
    samples = [{"input_ids": torch.randint(32, (8,)), "labels": torch.tensor(0)} for _ in range(256)]
    arguments = TrainingArguments(
        "checkpoints",
        max_steps=1_000_000,
        save_strategy="no",
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    Trainer(model, arguments, train_dataset=samples, callbacks=[Telling()]).train()
