"""One list out of a node's own failures and those of the whole job, in which one is held to be the first. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.errors import ProcessFailure


def together(own: Mapping[int, ProcessFailure], job: Mapping[int, ProcessFailure]) -> dict[int, ProcessFailure]:
    """By global rank. The first of `job` that followed from no other came first, and all others followed from it: the
    clocks of two machines are not compared. Of its own failures a node knows more than the job was told."""
    first = next((rank for rank, failure in job.items() if failure.caused_by is None), None)
    if first is None:
        return {**job, **own}
    return {
        rank: replace(failure, caused_by=None if rank == first else first) for rank, failure in {**job, **own}.items()
    }


def first_in_words(failures: Mapping[int, ProcessFailure]) -> str:
    """The rank and the reason of the one that followed from no other; empty if there is none."""
    first = next((failure for failure in failures.values() if failure.caused_by is None), None)
    return f"rank {first.global_rank}: {first.reason}" if first else ""
