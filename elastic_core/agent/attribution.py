"""Failure attribution: which failure came first, of this node's and of the whole job's. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.errors import ProcessFailure


def first_of(failures: Mapping[int, ProcessFailure]) -> ProcessFailure | None:
    """The one that followed from no other; None if there is none."""
    return next((failure for failure in failures.values() if failure.caused_by is None), None)


def first_in_words(failures: Mapping[int, ProcessFailure]) -> str:
    """The rank and the reason of the first; empty if there is none."""
    first = first_of(failures)
    return f"rank {first.global_rank}: {first.reason}" if first else ""


def together(own: Mapping[int, ProcessFailure], job: Mapping[int, ProcessFailure]) -> dict[int, ProcessFailure]:
    """By global rank. The first of `job` came first, and all others followed from it: the clocks of two machines are
    not compared. A node knows more about its own failures than it has told the job."""
    first = next((rank for rank, failure in job.items() if failure.caused_by is None), None)
    if first is None:
        return {**job, **own}
    return {
        rank: replace(failure, caused_by=None if rank == first else first) for rank, failure in {**job, **own}.items()
    }
