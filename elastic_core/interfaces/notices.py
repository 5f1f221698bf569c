"""Notices: announcements that this node will have to leave the job, for example because its machine is reclaimed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.clock import Duration


@dataclass(frozen=True)
class Notice:
    """A notice that this node must have left the job by a certain time.

    Args:
        reason: why the node must leave, in a few words for users.
        at: the time by which the node must have left, in seconds since the epoch. If it is None or in the past, the
            node leaves immediately, and its workers get their full time to stop.

    Raises:
        ValueError: the reason is empty, or the time is not a finite number.
    """

    reason: str
    at: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason.strip():
            raise ValueError(f"expected a reason for the notice, found {self.reason!r}")
        if self.at is not None and not (isinstance(self.at, (int, float)) and math.isfinite(self.at)):
            raise ValueError(f"expected the time of the notice in seconds since the epoch, found {self.at!r}")


Pause = Callable[["Duration"], bool]
"""Waits for the given number of seconds. When the agent ends, the function returns false immediately, and its caller
must then return as well."""

Notices = Iterator[Notice | None]
"""The notices from one source. Each notice replaces the source's previous notice, and None withdraws that notice."""
