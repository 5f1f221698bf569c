"""One turn of the agent's loop, and what a run comes to, in words. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.agent.blame import together
from elastic_core.agent.state import RunResult, WorkerState
from elastic_core.errors import SignalException

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.agent.supervise import Decision, Observation
    from elastic_core.errors import ProcessFailure

Ended = tuple[RunResult, str]
"""What the run came to, and why."""


@dataclass(frozen=True)
class Turn:
    """What was seen and what is to be done about it."""

    seen: Observation
    decision: Decision

    @property
    def told(self) -> Mapping[int, ProcessFailure]:
        """The failures of the job that the verdict names."""
        return self.seen.verdict.failures if self.seen.verdict else {}

    @property
    def failures(self) -> dict[int, ProcessFailure]:
        """Those of this node and those of the job."""
        return together(self.seen.result.failures, self.told)


def ended_by(error: BaseException) -> tuple[WorkerState, str]:
    """State and reason of a run that an error ended."""
    stopped = isinstance(error, (SignalException, KeyboardInterrupt))
    return WorkerState.STOPPED if stopped else WorkerState.FAILED, in_words(error)


def in_words(error: BaseException) -> str:
    """The error for people."""
    if isinstance(error, SignalException):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted from the keyboard"
    return f"{type(error).__name__}: {error}"
