"""A script with the Trainer of transformers, which trains a tiny model with random weights until it is killed."""

from __future__ import annotations

import time
from typing import Any

import torch
from steps import step_recorder
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

PAUSE_S = 0.02
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


class StepRecorder(TrainerCallback):
    """Records each step."""

    def __init__(self) -> None:
        self.record = step_recorder()

    def on_step_end(self, *_: Any, **more: Any) -> None:
        """Record the step."""
        self.record()
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
    Trainer(model, arguments, train_dataset=samples, callbacks=[StepRecorder()]).train()
