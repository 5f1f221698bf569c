"""What the older protocol can be told and what it takes for granted, and where a run keeps what in etcd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from elastic_etcd_legacy.steps import Bounds

if TYPE_CHECKING:
    from elastic_core.plugin import Duration

DEFAULT_PREFIX = "/torchelastic/p2p"
TIMEOUT: Duration = 600.0
LAST_CALL: Duration = 30.0


@dataclass(frozen=True)
class Keys:
    """The keys of one run. All that a node follows is below `followed`; the rounds' stores are not.

    Args:
        prefix: below which all runs are; slashes at its ends do not count.
        run_id: the job. It is quoted, so that no two jobs share a key.
    """

    prefix: str
    run_id: str

    @property
    def root(self) -> str:
        """Below which everything of this run is."""
        stem = self.prefix.strip("/")
        name = f"run_{quote(self.run_id, safe='')}"
        return f"/{stem}/{name}/" if stem else f"/{name}/"

    @property
    def followed(self) -> bytes:
        """Below which the document and the keep-alives are."""
        return f"{self.root}rdzv/".encode()

    @property
    def document(self) -> bytes:
        """The document."""
        return self.followed + b"active_version"

    def alive(self, version: int, rank: int) -> bytes:
        """The keep-alive of a rank."""
        return self.followed + f"v_{version}/rank_{rank}".encode()

    def store(self, version: int) -> str:
        """Below which the store of a round is."""
        return f"{self.root}kv/v_{version}/"


@dataclass(frozen=True)
class LegacySettings:
    """Durations are seconds.

    Args:
        run_id: the job.
        min_nodes, max_nodes: 1 <= min_nodes <= max_nodes.
        timeout: for `next_rendezvous` to succeed, waiting while another round runs included; above 0.
        last_call: how long nodes may still join once the least number is there; 0 or more.
        prefix: below which all runs are in etcd.
        setup: for who creates a rendezvous to open it.
        confirm: for the next participant to confirm.
        keep_alive: after so long without a sign of life a node is gone. etcd makes less than 2 s 2 s.
        kept: for so long after its last writer is gone a run's document stays.

    Raises:
        ValueError: a bound does not hold.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: Duration = TIMEOUT
    last_call: Duration = LAST_CALL
    prefix: str = DEFAULT_PREFIX
    setup: Duration = 5.0
    confirm: Duration = 10.0
    keep_alive: Duration = 10.0
    kept: Duration = 7200.0

    def __post_init__(self) -> None:
        if not self.run_id:
            raise ValueError("expected a run id, found an empty one; set --rdzv-id")
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(f"expected 1 <= min_nodes <= max_nodes, found {self.min_nodes} and {self.max_nodes}")
        if not 0 < self.timeout < float("inf"):
            raise ValueError(f"expected a timeout above 0 s, found {self.timeout}")
        if not 0 <= self.last_call < float("inf"):
            raise ValueError(f"expected a last call of 0 s or more, found {self.last_call}")

    @property
    def bounds(self) -> Bounds:
        """How many nodes make a round."""
        return Bounds(self.min_nodes, self.max_nodes)

    @property
    def keys(self) -> Keys:
        """Where the run is in etcd."""
        return Keys(self.prefix, self.run_id)
