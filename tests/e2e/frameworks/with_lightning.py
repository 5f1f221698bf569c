"""Training with lightning as its users write it. It records its steps in the file `STEPS`."""

import os
import time

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_stop import StopTogether


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        with open(os.environ["STEPS"], "a") as steps:
            print(self.global_rank, os.getpid(), self.global_step, file=steps)
        time.sleep(0.05)
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=30,
        logger=False,
        enable_progress_bar=False,
        callbacks=[ModelCheckpoint("checkpoints", every_n_train_steps=5, save_last=True), StopTogether("stop.ckpt")],
    )
    samples = torch.utils.data.TensorDataset(torch.randn(256, 4))
    saved = "stop.ckpt" if os.path.exists("stop.ckpt") else "last"
    trainer.fit(Model(), torch.utils.data.DataLoader(samples, batch_size=4), ckpt_path=saved)
    print("trained", trainer.global_step, flush=True)
    os._exit(0)  # a thread of gloo may still release a tensor, and would abort the exit
