"""Workers of which rank 1 hangs in the first round: `python hanging.py elastic|torchrun timer|progress SECONDS`.

With `timer` it hangs inside a timer of that many seconds, with `progress` outside of any. It has a child process, and
prints JSON with its process id and its deadline. The other workers print a line every 0.1 s, and another one when they
get SIGTERM. Times are seconds since boot.
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
    """Seconds since boot, as in `benchmarks.processes`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def say(**facts: object) -> None:
    """Print a line of JSON in one write."""
    os.write(1, (json.dumps(facts) + "\n").encode())


def timer(launcher: str, seconds: float):  # type: ignore[no-untyped-def]
    """A timer from the launcher's library."""
    if launcher == "elastic":
        from elastic_core.watchdog import expires

        return expires(seconds, "step")
    from torch.distributed.elastic import timer

    timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
    return timer.expires(seconds, "step")


def hang_here() -> None:
    """Hang in a function whose name must appear in the reported stack."""
    time.sleep(1000)


def main(launcher: str, way: str, seconds: float) -> None:
    """Hang in the first round, and succeed in the next one."""
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

    def on_sigterm(signum: int, frame: object) -> None:
        say(terminated=signum)
        sys.exit(1)

    signal.signal(signal.SIGTERM, on_sigterm)
    while True:
        say(works=os.getpid())
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
