"""Names as people write them: spellings that count as one, and the nearest valid name for a wrong one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def normalised(name: str) -> str:
    """The name with every spelling of it made equal, as package indexes do: lower case, `-` for `-`, `_` and `.`."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` was probably meant to be, or None when none is near."""
    import difflib

    by_lower = {candidate.lower(): candidate for candidate in sorted(candidates)}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing when no candidate is near."""
    near = nearest(name, candidates)
    return f"; did you mean {near!r}?" if near else ""
