"""Failure attribution: distinguishes root causes from failures that the loss of a peer may have caused. Attribution is
a guess based on the text of the failure messages. The guess affects only two things: whether a failure may be exempt
from the restart budget, and which failure is shown first."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.errors import ProcessFailure

PHRASES = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "connection was closed",
    "broken pipe",
    "remote process exited",
    "remote process has terminated",
    "timed out waiting",
    "socket timeout",
    "nccl",
    "gloo",
    "recvvalue failed",
    "failed to recv",
    "store has been closed",
    "distnetworkerror",
    "diststoreerror",
)
"""Lower-case phrases that communication libraries use in messages about the loss of a peer."""


def is_certain(failures: Mapping[int, ProcessFailure]) -> bool:
    """Return whether the loss of a peer can be ruled out as the cause of at least one failure. It cannot be ruled out
    for a worker that left an exit code but no message, or that aborted, because collectives abort when a peer is lost.
    It is ruled out for a worker that the agent killed because it was hung."""
    return any(_by_itself(failure) for failure in failures.values() if failure.caused_by is None)


def _by_itself(failure: ProcessFailure) -> bool:
    if not failure.curable or failure.hung:
        return True
    if failure.exitcode < 0 and failure.exitcode != -signal.SIGABRT and not failure.error_file_data:
        return True
    words = " ".join([failure.message, *failure.stderr_tail]).lower()
    return bool(words.strip()) and not any(phrase in words for phrase in PHRASES)
