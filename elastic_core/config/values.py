"""The types of settings that Python has no word for. Frozen; `str(value)` is the text that reads back as it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeRange:
    """How many nodes a job may have: 1 <= min <= max.

    Raises:
        ValueError: a bound does not hold.
    """

    min: int
    max: int

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise ValueError(f"expected 1 <= MIN <= MAX nodes, found {self.min}:{self.max}")

    def __str__(self) -> str:
        return f"{self.min}:{self.max}"


class Streams(enum.IntFlag):
    """A worker's output streams, under the numbers that torchrun's `-r` and `-t` use."""

    NONE = 0
    STDOUT = 1
    STDERR = 2
    BOTH = 3


@dataclass(frozen=True)
class StreamMap:
    """Which streams are meant, for any local rank: `everywhere`, unless `named` lists ranks (the others have none).

    `named` is sorted by local rank.
    """

    everywhere: Streams = Streams.NONE
    named: tuple[tuple[int, Streams], ...] = ()

    def for_rank(self, local_rank: int) -> Streams:
        """The streams meant for the worker of this local rank."""
        return dict(self.named).get(local_rank, self.everywhere)

    def __str__(self) -> str:
        if not self.named:
            return str(int(self.everywhere))
        return ",".join(f"{rank}:{int(streams)}" for rank, streams in self.named)
