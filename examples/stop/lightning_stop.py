"""For Lightning: all ranks save after the same step when the job is asked to stop. Start again with `ckpt_path`."""

import lightning

import elastic_core


class StopTogether(lightning.Callback):
    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: lightning.Trainer, *more: object) -> None:
        if elastic_core.should_stop(trainer.global_step):
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True
