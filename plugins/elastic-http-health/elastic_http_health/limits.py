"""How much the world may ask of the endpoint, so that it cannot hurt the agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.clock import Duration


@dataclass(frozen=True)
class Limits:
    """All times in seconds.

    Args:
        connections: open at a time; one more takes the place of the one that has been idle for longest.
        waiting: of them, those that wait for a change; one more is answered at once.
        rate: connections accepted per second, on average; each brings one request. More wait in the kernel.
        burst: accepted at once after a quiet time.
        backlog: connections that wait in the kernel. Few: who waits behind so many waits little longer than a second.
        head_bytes: of a request's head, about.
        head_seconds: for all of it.
        spare_reads: per second, for heads that come in more than two pieces, of all connections together; a connection
            that would need one more is closed.
        answer_seconds: for the client to take the answer.
        rest_bytes: read, and thrown away, of what a client sends behind its request: to close with such bytes unread
            would take the answer from it.
        rest_seconds: for all of that.
        wait_seconds: the longest that a request may ask to wait for a change.
    """

    connections: int = 64
    waiting: int = 16
    rate: float = 200.0
    burst: int = 50
    backlog: int = 256
    head_bytes: int = 8192
    head_seconds: Duration = 5.0
    spare_reads: float = 200.0
    answer_seconds: Duration = 10.0
    rest_bytes: int = 262_144
    rest_seconds: Duration = 0.5
    wait_seconds: Duration = 30.0
