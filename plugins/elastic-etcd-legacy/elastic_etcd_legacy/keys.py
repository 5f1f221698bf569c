"""Where a run keeps what in etcd."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PREFIX = "/torchelastic/p2p"


@dataclass(frozen=True)
class Keys:
    """The keys of one run. All that a node follows is below `followed`; the rounds' stores are not.

    Args:
        prefix: below which all runs are; slashes at its ends do not count.
        run_id: the job.
    """

    prefix: str
    run_id: str

    @property
    def root(self) -> str:
        """Below which everything of this run is."""
        stem = self.prefix.strip("/")
        return f"/{stem}/run_{self.run_id}/" if stem else f"/run_{self.run_id}/"

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
