"""A Trainer with DDP over the workers."""

import probe

import lightning
import torch

probe.imported("lightning")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


lightning.seed_everything(1)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_steps=6, logger=False, enable_progress_bar=False,
    enable_checkpointing=False,
)  # fmt: skip
samples = torch.utils.data.TensorDataset(torch.randn(64, 4))
model = Model()
trainer.fit(model, torch.utils.data.DataLoader(samples, batch_size=4))
probe.variable("rank", [trainer.global_rank, trainer.local_rank, trainer.world_size, model.global_rank])
probe.variable("rank zero", lightning.pytorch.utilities.rank_zero_only.rank)
probe.result("loss", trainer.callback_metrics["loss"].item())
probe.result("weights", model.layer.weight.tolist())
probe.end()
