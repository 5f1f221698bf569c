"""A worker of which rank 1 hangs in the first round: `python hanging.py elastic|torchrun timer|progress SECONDS`.

With `timer` it does so in a timer of that many seconds, with `progress` just so. It prints as JSON who it is and when
it should have moved on, and has a child. The others print a line now and then, and say so when they are asked to end.
Times are seconds since boot.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext


def now() -> float:
    """The clock of the benchmark."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def say(**facts: object) -> None:
    """One line, in one piece."""
    os.write(1, (json.dumps(facts) + "\n").encode())


def timer(launcher: str, seconds: float):  # type: ignore[no-untyped-def]
    """Of the launcher's own library."""
    if launcher == "elastic":
        from elastic_core.watchdog import expires

        return expires(seconds, "step")
    from torch.distributed.elastic import timer

    timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
    return timer.expires(seconds, "step")


def hang_here() -> None:
    """What the stack has to name."""
    time.sleep(1000)


def main(launcher: str, way: str, seconds: float) -> None:
    """The first round hangs, the next one ends well."""
    round_ = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    say(runs=os.getpid(), round=round_, at=now())
    if round_:
        return
    if os.environ["RANK"] == "1":
        block = timer(launcher, seconds) if way == "timer" else nullcontext()
        child = subprocess.Popen(["sleep", "1000"])
        due = now() + seconds
        with block:
            say(hangs=os.getpid(), child=child.pid, due=due)
            hang_here()

    def told(signum: int, frame: object) -> None:
        say(told=signum)
        sys.exit(1)

    signal.signal(signal.SIGTERM, told)
    while True:
        say(works=os.getpid())
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
