"""That there is something better is said once in a process: to people in the log, to developers as a warning."""

from __future__ import annotations

import threading
import warnings

from elastic_core.log import get_logger

ADVICE = (
    "the backend etcd needs no change but its name: it re-forms at once after a failure, its members learn of it by "
    "push, and its cost does not grow with the square of the nodes"
)
_said = threading.Event()


def say_deprecated(stacklevel: int = 3) -> None:
    """Say it, unless it was said. `stacklevel`: as for `warnings.warn`, seen from here."""
    message = f"the rendezvous backend etcd-legacy is in maintenance mode; use etcd: {ADVICE}"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)
    if not _said.is_set():
        _said.set()
        get_logger(backend="etcd-legacy", better="etcd").warning("backend deprecated", advice=ADVICE)
