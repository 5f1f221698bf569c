"""For accelerate: all ranks save after the same step when the job is asked to stop. Start again with `load_state`.

for step, batch in enumerate(batches):
    ...
    if saved_to_stop(accelerator, step):
        break
"""

from accelerate import Accelerator

import elastic_core


def saved_to_stop(accelerator: Accelerator, step: int) -> bool:
    if stop := elastic_core.should_stop(step):
        accelerator.save_state()
    return stop
