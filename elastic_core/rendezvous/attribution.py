"""Which failures are the cause and which follow from the loss of a peer. It is a guess from words, used only to decide
whether a failure may turn out to cost no restart, and which of several is shown first; no clocks are compared."""

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
"""What libraries of collectives say, in small letters, when a peer has gone."""


def is_certain(failures: Mapping[int, ProcessFailure]) -> bool:
    """Whether at least one worker failed by itself, as far as is known. A worker that left an exit code and no message
    may have lost a peer, and so may one that aborted, which is how a collective gives up; a worker that an agent killed
    because it hung has not."""
    return any(_by_itself(failure) for failure in failures.values() if failure.caused_by is None)


def _by_itself(failure: ProcessFailure) -> bool:
    if not failure.curable or failure.hung:
        return True
    if failure.exitcode < 0 and failure.exitcode != -signal.SIGABRT:
        return True
    words = " ".join([failure.message, *failure.stderr_tail]).lower()
    return bool(words.strip()) and not any(phrase in words for phrase in PHRASES)
