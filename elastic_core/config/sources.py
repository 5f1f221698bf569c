"""What the sources have in common: a found value with its origin, and the advice for a name nobody knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elastic_core.errors import Problem


@dataclass(frozen=True)
class Found:
    """A value as its source holds it, not parsed yet."""

    raw: object
    origin: str


@dataclass
class Findings:
    """What one source holds, by setting, and what is wrong with the source itself."""

    found: dict[str, Found] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def nearest(name: str, valid: Iterable[str], likeness: float = 0.6) -> str | None:
    """The valid name that a misspelt one was probably meant to be; `likeness` runs from 0 (any) to 1 (equal)."""
    from difflib import get_close_matches  # only misspelt names pay for it

    names = list(valid)
    close = get_close_matches(name, names, n=1, cutoff=likeness)
    longer = [candidate for candidate in names if len(name) > 3 and candidate.startswith(name)]
    return next(iter([*close, *longer]), None)


def suggestion(near: str | None, otherwise: str) -> str:
    """The last words of the error for an unknown name."""
    return f"did you mean {near}?" if near else otherwise
