"""Closes file descriptors in forked children, because other processes wait until the last copy has been closed."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol


class Droppable(Protocol):
    """An object whose file descriptors must not stay open in a forked child."""

    def drop(self) -> None:
        """Close the file descriptors in the child."""
        ...


_owners: weakref.WeakSet[Droppable] = weakref.WeakSet()


def drop_in_forks(owner: Droppable) -> None:
    """Call `owner.drop()` in every child that is forked from now on, for as long as `owner` exists."""
    _owners.add(owner)


def stop_dropping(owner: Droppable) -> None:
    """Stop calling `owner.drop()`, because the owner has closed its descriptors itself. Idempotent."""
    _owners.discard(owner)


def _drop_all() -> None:
    for owner in list(_owners):
        with contextlib.suppress(OSError):  # one owner's failure must not keep others from closing theirs
            owner.drop()


os.register_at_fork(after_in_child=_drop_all)
