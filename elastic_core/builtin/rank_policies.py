"""The built-in rank policies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from elastic_core.hooks import RankPolicyRecord, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.interfaces.node import Candidate


def keep(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Keep the current order."""
    return candidates


def by_host(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Sort by host name, with node7 before node66. Machines with adjacent names are usually close in the network, so
    they become neighbors in a ring of ranks. A new node, which has no training state, may get rank 0."""
    return sorted(candidates, key=lambda candidate: _natural(candidate.node.host))


def _natural(name: str) -> list[tuple[str, int]]:
    """Split the name into pairs of a string and the number that follows it."""
    pairs = re.findall(r"([^0-9]*)([0-9]{0,18})", name)
    return [(text, int(number or -1)) for text, number in pairs]


@hookimpl
def elastic_rank_policies() -> list[RankPolicyRecord]:
    return [
        RankPolicyRecord("keep", "nodes keep their ranks; new nodes fill gaps by host name", lambda context: keep),
        RankPolicyRecord("host", "sort all nodes by host name in every round", lambda context: by_host),
    ]
