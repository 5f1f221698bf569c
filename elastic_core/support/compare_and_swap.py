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
    """The first result of `change` that is not None. `change` reads, decides and writes; None means that the write was
    refused, because another one came first. Raises TooManyRefusals after so many attempts: the others make progress,
    and our turn should have come."""
    for _ in range(attempts):
        done = change()
        if done is not None:
            return done
    raise TooManyRefusals(f"expected to write within {attempts} attempts, found that others always did so first")
