"""What the endpoint knows of its own work."""

from __future__ import annotations

from collections import Counter


class Counts:
    """Of connections and answers, since the start.

    Attributes:
        connections: open now.
        most_connections: that were open at a time.
        answers: by status code.
        closed: before they had an answer, by reason.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.most_connections = 0
        self.accepted = 0
        self.answers: Counter[int] = Counter()
        self.closed: Counter[str] = Counter()

    def came(self, connections: int) -> None:
        self.accepted += 1
        self.connections = connections
        self.most_connections = max(self.most_connections, connections)

    def left(self, connections: int, why: str) -> None:
        if why:
            self.closed[why] += 1
        self.connections = connections

    def answered(self, status: int) -> None:
        self.answers[status] += 1
