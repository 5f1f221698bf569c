"""torch's errors in our family. A C++ stack trace is cut off; the original error stays as the cause."""

from __future__ import annotations

from elastic_core.errors import RendezvousConnectionError


def unreachable(doing: str, where: str, error: BaseException) -> RendezvousConnectionError:
    """The error for a store operation that failed. Raise it `from error`."""
    return RendezvousConnectionError(f"{doing} at {where} failed: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """What the error says, without a stack trace."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def is_wait_timeout(error: BaseException) -> bool:
    """Whether a `wait` ended because its time was up. torch has one class for this and other refusals of a store, and
    only the message tells them apart; a broken connection has a class of its own."""
    return type(error).__name__ != "DistNetworkError" and "timeout" in str(error).lower()
