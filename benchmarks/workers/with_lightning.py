"""A lightning script for two workers, which trains a small model until it is killed."""

from __future__ import annotations

import time
from typing import Any

import lightning
import torch
from steps import step_recorder

PAUSE_S = 0.02


class Model(lightning.LightningModule):
    """A model with one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(32, 8)

    def training_step(self, batch: Any) -> torch.Tensor:
        """The loss."""
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer."""
        return torch.optim.SGD(self.parameters(), 0.01)


class StepRecorder(lightning.Callback):
    """Records each step."""

    def __init__(self) -> None:
        self.record = step_recorder()

    def on_train_batch_end(self, *_: Any) -> None:
        """Record the step."""
        self.record()
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    torch.set_num_threads(1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[StepRecorder()],
    )
    samples = torch.utils.data.TensorDataset(torch.randn(1024, 32))
    trainer.fit(Model(), torch.utils.data.DataLoader(samples, batch_size=4))
