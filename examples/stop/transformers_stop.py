"""For transformers' Trainer: all ranks save after the same step when the job is asked to stop. Start again with
`resume_from_checkpoint`."""

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import elastic_core


class StopTogether(TrainerCallback):
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        if elastic_core.should_stop(state.global_step):
            control.should_save = control.should_training_stop = True
