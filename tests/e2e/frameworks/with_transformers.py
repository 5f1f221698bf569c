"""Training with transformers as its users write it. It records its steps in the file `STEPS`."""

import os
import time

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
from transformers_stop import StopTogether


class Telling(TrainerCallback):
    def on_step_begin(self, args, state, control, **more):
        with open(os.environ["STEPS"], "a") as steps:
            print(args.process_index, os.getpid(), state.global_step, file=steps)
        time.sleep(0.05)


if __name__ == "__main__":
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=32, max_position_embeddings=8, **shape))
    samples = [{"input_ids": torch.randint(32, (8,)), "labels": torch.tensor(0)} for _ in range(256)]
    arguments = TrainingArguments(
        "checkpoints",
        max_steps=30,
        save_steps=5,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Trainer(model, arguments, train_dataset=samples, callbacks=[Telling(), StopTogether()])
    last = get_last_checkpoint("checkpoints") if os.path.isdir("checkpoints") else None
    trainer.train(resume_from_checkpoint=last)
    print("trained", trainer.state.global_step, flush=True)
    os._exit(0)  # a thread of gloo may still release a tensor, and would abort the exit
