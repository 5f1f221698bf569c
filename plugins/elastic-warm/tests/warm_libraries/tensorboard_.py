"""TensorBoard events, written in a thread through torch."""

import os

import probe

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

probe.imported("tensorboard")
folder = os.path.join(probe.folder(), "events")
with SummaryWriter(folder) as writer:
    for step in range(5):
        writer.add_scalar("loss", 1 / (step + 1), step)
events = EventAccumulator(folder)
events.Reload()
probe.result("read", [(one.step, round(one.value, 6)) for one in events.Scalars("loss")])
probe.end()
