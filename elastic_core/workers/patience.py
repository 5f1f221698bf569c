"""How long the agent waits for a worker that hangs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.clock import Duration


@dataclass(frozen=True)
class HangPatience:
    """Bounds in seconds; each wait ends early if what it waits for has come.

    Attributes:
        answer: for a worker that was asked to write its stacks and die; it takes milliseconds.
        spy: for py-spy, which has to read the symbols of large libraries.
        console: for the stacks to come through the pipe; it takes them if the console stalls.
        end: for a killed worker to be gone.
    """

    answer: Duration = 0.5
    spy: Duration = 2.0
    console: Duration = 0.25
    end: Duration = 1.0
