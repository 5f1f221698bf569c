"""A worker whose steps take a random time, and which saves its step when it is asked to stop: with `should_stop`, or in
the usual way, with a handler for SIGTERM (BENCHMARK_RECIPE=signal). BENCHMARK_LOADER=1: a DataLoader with two processes
feeds it."""

from __future__ import annotations

import json
import os
import random
import signal
import time

from steps import step_recorder

import elastic_core

asked = False


def ask(*_: object) -> None:
    """Note that the agent has asked for the end."""
    global asked
    asked = True


def batches():
    """One item for each step."""
    if os.environ.get("BENCHMARK_LOADER"):
        from torch.utils.data import DataLoader

        return iter(DataLoader(range(10**9), batch_size=1, num_workers=2))
    return iter(range(10**9))


if __name__ == "__main__":
    usual = os.environ.get("BENCHMARK_RECIPE") == "signal"
    if usual:
        signal.signal(signal.SIGTERM, ask)
    items, record, step = batches(), step_recorder(), 0
    while not (asked if usual else elastic_core.should_stop(step)):
        next(items)
        time.sleep(random.uniform(0.001, 0.05))
        record()
        step += 1
    left = elastic_core.stop_deadline()
    line = {"step": step, "left": left}
    saves = os.open(os.environ["BENCHMARK_STEPS"] + ".saves", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(saves, (json.dumps(line) + "\n").encode())
