"""Notices: announcements that this node will have to leave the job, for example because its machine is reclaimed."""

from __future__ import annotations

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
        at: the time, in seconds since the epoch. If it is None, the node leaves immediately.
    """

    reason: str
    at: float | None = None


Pause = Callable[["Duration"], bool]
"""Waits for the given number of seconds. When the agent ends, it immediately returns false, and the caller must then
return as well."""

Notices = Iterator[Notice | None]
"""The notices from one source. Each notice replaces the source's previous notice, and None withdraws that notice."""
