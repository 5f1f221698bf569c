"""Reports of the programs in this folder, one line each: `probe KIND NAME: JSON`.

A program imports this module first, then its library, and calls `imported`; later it calls `result`, `variable` and
`random`, and finally `end`. In the first round, `end` waits until this worker is killed, or stopped after the other.
"""

import sys
import time

THERE = frozenset(sys.modules)
BEGAN = time.perf_counter()

import json
import os

RANK, ROUND = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
LAST_IMPORT = "pydoc_data"  # once the agent has learned it, it has learned all earlier imports
PATIENCE = 300


def report(kind, name, value):
    print(f"probe {kind} {name}: {json.dumps(value, default=str)}", flush=True)


def imported(library):
    """Report the duration of the imports, and the modules that they had to load."""
    seconds = time.perf_counter() - BEGAN
    needed = {name for name in sys.modules if not is_own(name)}
    missing = sorted(needed - THERE)
    report("imports", library, {"seconds": seconds, "needed": len(needed), "missing": missing})


def is_own(name):
    """Whether the module is from this folder, and not part of an installation."""
    folder = os.path.dirname(os.path.abspath(__file__))
    return os.path.dirname(getattr(sys.modules[name], "__file__", None) or "") == folder


def result(name, value):
    """Report a value that is the same in every run."""
    report("result", name, value)


def variable(name, value):
    """Report a value that the library derives from the worker's variables; it must equal that of a cold worker."""
    report("variable", name, value)


def random(name, value):
    """Report a value drawn without a seed; it must differ between workers if it does between cold ones."""
    report("random", name, value)


def folder():
    """This worker's own folder for this round."""
    path = os.path.abspath(f"files-{ROUND}-{RANK}")
    os.makedirs(path, exist_ok=True)
    return path


def end():
    """Report the state of the process; then, in the first round, wait to be killed or stopped."""
    import gc

    from process_state import state

    gc.collect()  # closes unreferenced files
    for name, value in state().items():
        report("state", name, value)
    if ROUND:
        return
    __import__(LAST_IMPORT)
    with open(f"reached-{RANK}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"reached-{RANK}.new", f"reached-{RANK}")
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        time.sleep(0.05)
    raise TimeoutError("no worker was killed")
