"""State of the whole process that an import may change."""

import atexit
import builtins
import ctypes
import decimal
import gc
import locale
import logging
import os
import re
import resource
import signal
import sys
import threading
import warnings

OF_THIS_RUN = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "ELASTIC_STOP_FILE")


def state():
    return {
        "environment": dict(sorted(environment())),
        "environ": sorted(os.environ),
        "signals": {signal.Signals(one).name: named(signal.getsignal(one)) for one in signal.valid_signals()
                    if one < signal.SIGRTMIN and signal.getsignal(one) not in (signal.SIG_DFL, None)},
        "of the kernel": of_kernel("SigBlk", "SigIgn", "SigCgt", "NoNewPrivs"),
        "files": sorted(set(files())),  # the number of sockets depends on which rank connects first, also when cold
        "threads": sorted({re.sub("[0-9]+", "#", thread.name) for thread in threading.enumerate()}),  # pools grow
        "schedule": [os.sched_getscheduler(0), os.nice(0), sorted(os.sched_getaffinity(0))],
        "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")],
        "folder": os.getcwd(),
        "exit": atexit._ncallbacks(),
        "path": sys.path,
        "arguments": [sys.argv, sys.orig_argv],
        "hooks": [named(getattr(sys, name)) for name in ("excepthook", "displayhook", "unraisablehook")],
        "threading hook": named(threading.excepthook),
        "finders": [[named(one) for one in sys.meta_path], len(sys.path_hooks)],
        "streams": [named(type(one)) for one in (sys.stdin, sys.stdout, sys.stderr)],
        "builtins": sorted(vars(builtins)),
        "warnings": sorted(filters()),
        "loggers": loggers(),
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), [named(one) for one in gc.callbacks]],
        "interpreter": [sys.getrecursionlimit(), sys.getswitchinterval(), str(sys.flags).replace("_", "")],
        "traced": [named(sys.gettrace()), named(sys.getprofile())],
        "decimal": str(decimal.getcontext()),
        "locale": locale.setlocale(locale.LC_ALL),
        "small numbers": [sys.float_info.min / 2 > 0],
        "main": {name: type(value).__name__ for name, value in vars(sys.modules["__main__"]).items()
                 if name[:2] == name[-2:] == "__"},
        "numpy": [of("numpy", "geterr"), of("numpy", "get_printoptions")],
        "torch": [of("torch", name) for name in ("get_num_threads", "get_num_interop_threads", "get_default_dtype",
                                                 "is_grad_enabled", "get_default_device")],
    }  # fmt: skip


def named(what):
    """The name of an object, without its address."""
    module, name = getattr(what, "__module__", ""), getattr(what, "__qualname__", None)
    return f"{module}.{name}" if name else str(what).partition(" at 0x")[0]


def of(library, function):
    module = sys.modules.get(library)
    return str(getattr(module, function)()) if module else None


def environment():
    """The environment in C."""
    pointer = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    at = 0
    while pointer[at] is not None:
        name, _, value = pointer[at].decode().partition("=")
        here = value.replace(os.getcwd(), "here")
        yield name, "of this run" if name in OF_THIS_RUN else re.sub("[0-9]{3,}", "#", here)
        at += 1


def of_kernel(*names):
    with open("/proc/self/status") as file:
        return [line.split()[:2] for line in file if line.startswith(names)]


def files():
    """Open files, without pipes that are not inheritable (a worker reports its imports through one), and without files
    that a library's threads may be about to close."""
    for name in os.listdir("/proc/self/fd"):
        try:
            what = os.readlink(f"/proc/self/fd/{name}").partition(":[")[0].replace(os.getcwd(), "here")
            if (what != "pipe" or os.get_inheritable(int(name))) and not what.startswith("here/files-"):
                yield re.sub("[0-9]+", "#", re.sub("logs/[0-9a-f]{16}/", "logs/run/", what))
        except OSError:
            pass  # the descriptor of the folder itself


def filters():
    """Whether `__main__` is a pattern or a text depends on which of two threads of scikit-learn ends first."""
    return [re.sub(r"re\.compile\(('[^']*')\)", r"\1", str(one)) for one in warnings.filters]


def loggers():
    found = {}
    for name, logger in [("root", logging.root), *sorted(logging.root.manager.loggerDict.items())]:
        if isinstance(logger, logging.Logger):
            handlers = [
                f"{named(type(one))} {one.level} {getattr(one, 'stream', None) is sys.stderr}"
                for one in logger.handlers
            ]
            if handlers or logger.level or logger.disabled or not logger.propagate:
                found[name] = [logger.level, logger.disabled, logger.propagate, handlers]
    return found
