"""Names as people write them: spellings that count as one, and the advice for a wrong one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from elastic_core.text import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable


def normalised(name: str) -> str:
    """The name with every spelling of it made equal, as package indexes do: lower case, `-` for `-`, `_` and `.`."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing when no candidate is near."""
    near = nearest(name, candidates)
    return f"; did you mean {near!r}?" if near else ""
