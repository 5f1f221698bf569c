"""The rank policies that come with the core."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from elastic_core.hooks import RankPolicyRecord, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.interfaces.node import Candidate


def keep(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """The order that they have."""
    return candidates


def by_host(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """In the order of their host names, node7 before node66, in every round anew: neighbours in the machine room, whose
    names mostly are neighbours too, are neighbours in the ring. Rank 0 may go to a newcomer, which has no state."""
    return sorted(candidates, key=lambda candidate: _natural(candidate.node.host))


def _natural(name: str) -> list[tuple[str, int]]:
    """Pairs of text and number. A number too long for Python to read counts as text."""
    pairs = re.findall(r"([^0-9]*)([0-9]{0,18})", name)
    return [(text, int(number or -1)) for text, number in pairs]


@hookimpl
def elastic_rank_policies() -> list[RankPolicyRecord]:
    return [
        RankPolicyRecord("keep", "nodes keep their ranks; newcomers fill the gaps, by host name", lambda context: keep),
        RankPolicyRecord("host", "by host name in every round, also rank 0", lambda context: by_host),
    ]
