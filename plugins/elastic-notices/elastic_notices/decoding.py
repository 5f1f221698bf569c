"""Decodes times, reasons and JSON from other programs. These programs are not trusted, so invalid input raises
ValueError."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from elastic_core.plugin import Notice, in_one_line

if TYPE_CHECKING:
    from elastic_core.plugin import Duration

MOST_BYTES = 64 * 1024
"""The maximum size of a file or response in bytes. Longer ones are refused."""

_OLDEST: Duration = 24 * 3600.0
_LATEST: Duration = 10 * 365 * 24 * 3600.0  # Slurm lets a job without a time limit end after a year
_LONGEST_REASON = 200


def make_notice(reason: str, at: float | None, now: float) -> Notice:
    """Create the notice that this node must leave at the time `at`, in seconds since the epoch. If that time has
    passed, or is None, the node must leave immediately, and its workers get the full grace period.

    Raises:
        ValueError: the time is more than a day ago, or more than ten years ahead.
    """
    if at is None:
        return Notice(reason)
    if not now - _OLDEST <= at <= now + _LATEST:
        raise ValueError(f"the time {at:.0f} (seconds since the epoch) is not plausible")
    return Notice(reason, at if at > now else None)


def parse_time(value: object) -> float:
    """Convert a number of seconds since the epoch, or an ISO 8601 time, to seconds since the epoch. An ISO 8601 time
    without an offset is in UTC. Raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a time, found {type(value).__name__}")
    try:
        seconds = float(value)
    except OverflowError:
        raise ValueError("the time is not plausible") from None
    except ValueError:
        seconds = _parse_iso(str(value).strip())
    if not math.isfinite(seconds):
        raise ValueError(f"expected a time, found {seconds}")
    return seconds


def _parse_iso(text: str) -> float:
    try:
        return to_seconds(datetime.fromisoformat(text.replace("Z", "+00:00")))  # Python 3.10 does not know the Z
    except ValueError:
        raise ValueError(f"expected a time, found {text[:50]!r}") from None


def to_seconds(time: datetime) -> float:
    """Return the seconds since the epoch. A time without an offset is in UTC."""
    return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()


def clean_reason(text: str, default: str) -> str:
    """Return the text on one line and with limited length, or `default` if nothing is left."""
    return in_one_line(" ".join(text.split()))[:_LONGEST_REASON].rstrip(". ") or default


def parse_object(text: str) -> dict[str, object]:
    """Parse a JSON object. Raises ValueError for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("the response is not valid JSON") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    return value
