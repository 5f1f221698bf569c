"""What the programs in this folder tell of themselves, a line each: `probe KIND NAME: JSON`.

A program imports this first, then its library, and calls `imported`; later `result`, `variable` and `random`, and `end`
when its work is done. In its first round a worker waits there until it is killed, or ended with the one that was.
"""

import sys
import time

THERE = frozenset(sys.modules)
BEGAN = time.perf_counter()

import json
import os

RANK, ROUND = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
LAST_IMPORT = "pydoc_data"  # who has learned of it has learned of all that was imported before
PATIENCE = 300


def tell(kind, name, value):
    print(f"probe {kind} {name}: {json.dumps(value, default=str)}", flush=True)


def imported(library):
    """The imports are over: how long they took, and what was there before."""
    seconds = time.perf_counter() - BEGAN
    needed = {name for name in sys.modules if not is_own(name)}
    missing = sorted(needed - THERE)
    tell("imports", library, {"seconds": seconds, "needed": len(needed), "missing": missing})


def is_own(name):
    """Of this folder, and so of no installation."""
    folder = os.path.dirname(os.path.abspath(__file__))
    return os.path.dirname(getattr(sys.modules[name], "__file__", None) or "") == folder


def result(name, value):
    """The same whenever the program runs."""
    tell("result", name, value)


def variable(name, value):
    """What the library makes of the worker's variables; the same as in a process that starts cold."""
    tell("variable", name, value)


def random(name, value):
    """Drawn without a seed: differs from process to process where those of fresh processes do."""
    tell("random", name, value)


def folder():
    """A folder of this worker's own, and of this round."""
    path = os.path.abspath(f"files-{ROUND}-{RANK}")
    os.makedirs(path, exist_ok=True)
    return path


def end():
    """The work is done; tell what the process has become. In the first round: be killed, or end with the other one."""
    import gc

    from process_state import state

    gc.collect()  # what is held by nobody is closed at some time
    for name, value in state().items():
        tell("state", name, value)
    if ROUND:
        return
    __import__(LAST_IMPORT)
    with open(f"reached-{RANK}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"reached-{RANK}.new", f"reached-{RANK}")
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        time.sleep(0.05)
    raise TimeoutError("nobody has killed a worker")
