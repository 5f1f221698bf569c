"""Notices: announcements that this node will have to leave the job, for example because its machine is reclaimed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.clock import Duration


@dataclass(frozen=True)
class Notice:
    """This node must have left by a certain time.

    Args:
        reason: why, in a few words for users.
        at: the time, in seconds since the epoch. If it is None, the node leaves at once.
    """

    reason: str
    at: float | None = None


Pause = Callable[["Duration"], bool]
"""Waits that many seconds. Returns false, at once, when the agent ends; the caller then returns as well."""

Notices = Iterator[Notice | None]
"""A notice source's notices. Each one replaces the source's previous one, and None withdraws it."""
