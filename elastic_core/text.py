"""Words that people write: the spellings of true and false, the spellings of one name, and the name that a misspelt one
was meant to be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"0", "false", "f", "no", "n", "off"})

HIDDEN = "***"
"""Shown in place of a secret."""


def truth(value: object) -> bool | None:
    """True or False as `value` spells it, in any case; None for other words."""
    word = str(value).strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def nearest(name: str, valid: Iterable[str], likeness: float = 0.6) -> str | None:
    """The valid name that is most like `name`, apart from case; otherwise one that begins with it, or None.

    `likeness` is the least likeness that counts, from 0 (any) to 1 (equal).
    """
    from difflib import get_close_matches  # imported only for a misspelt name

    by_lower = {candidate.lower(): candidate for candidate in sorted(valid)}
    wanted = name.lower()
    close = get_close_matches(wanted, list(by_lower), n=1, cutoff=likeness)
    longer = [candidate for candidate in by_lower if len(wanted) > 3 and candidate.startswith(wanted)]
    return next((by_lower[candidate] for candidate in (*close, *longer)), None)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The end of a message: `; did you mean 'x'?`, or empty if no valid name is near."""
    near = nearest(name, valid)
    return f"; did you mean {near!r}?" if near else ""


def normalised(name: str) -> str:
    """A name in the one spelling that package indexes give all its spellings: lower case, and one `-` for
    each run of `-`, `_` and `.`."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
