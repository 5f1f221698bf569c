"""Training with accelerate as its users write it. It records its steps in the file `STEPS`."""

import os
import time

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from accelerate_stop import saved_to_stop


class Progress:
    """The number of steps, kept with the checkpoint."""

    def __init__(self):
        self.steps = 0

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


if __name__ == "__main__":
    configuration = ProjectConfiguration(project_dir=".", automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=configuration)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if os.path.isdir("checkpoints") and os.listdir("checkpoints"):
        accelerator.load_state()
        configuration.iteration = len(os.listdir("checkpoints"))
    while progress.steps < 30:
        with open(os.environ["STEPS"], "a") as steps:
            print(accelerator.process_index, os.getpid(), progress.steps, file=steps)
        time.sleep(0.05)
        accelerator.backward(model(torch.randn(4, 4)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        progress.steps += 1
        if saved_to_stop(accelerator, progress.steps):
            break
        if progress.steps % 5 == 0:
            accelerator.save_state()
            accelerator.wait_for_everyone()
    accelerator.end_training()
    print("trained", progress.steps, flush=True)
    os._exit(0)  # a thread of gloo may still release a tensor, and would abort the exit
