"""What the sources have in common: a found value with its origin, and the advice for a name nobody knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def suggestion(near: str | None, otherwise: str) -> str:
    """The last words of the error for an unknown name."""
    return f"did you mean {near}?" if near else otherwise
