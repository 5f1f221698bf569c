"""Changing a shared value that others change as well: read it, decide, write it in the place of what was read, and do
it all again where somebody was first."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class TooManyRefusals(Exception):
    """Others always wrote first."""


def swapped(change: Callable[[], T | None], attempts: int) -> T:
    """What `change` returns, which reads, decides and writes, once it is not None: None is a write that was refused,
    because what was decided about is of the past. Raises TooManyRefusals after so many attempts: whoever refuses us
    makes progress, and our turn should have come."""
    for _ in range(attempts):
        done = change()
        if done is not None:
            return done
    raise TooManyRefusals(f"expected to write within {attempts} attempts, found that others always did so first")
