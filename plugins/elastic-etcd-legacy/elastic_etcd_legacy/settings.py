"""The older protocol's settings and their defaults, and the layout of a run's keys in etcd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from elastic_etcd_legacy.steps import Bounds

if TYPE_CHECKING:
    from elastic_core.plugin import Duration

DEFAULT_PREFIX = "/torchelastic/p2p"


class Keys:
    """The keys of one run, all of which begin with `root`. Nodes watch the keys under `followed`, which excludes the
    rounds' stores. `document` is the document's key.

    Args:
        prefix: prefix of all runs' keys; leading and trailing slashes are ignored.
        run_id: the job's run ID. It is percent-encoded in the keys, so that no two jobs share a key.
    """

    def __init__(self, prefix: str, run_id: str) -> None:
        stem, name = prefix.strip("/"), f"run_{quote(run_id, safe='')}"
        self.root = f"/{stem}/{name}/" if stem else f"/{name}/"
        self.followed = f"{self.root}rdzv/".encode()
        self.document = self.followed + b"active_version"

    def alive(self, version: int, rank: int) -> bytes:
        """Return the key of a rank's keep-alive."""
        return self.followed + f"v_{version}/rank_{rank}".encode()

    def store(self, version: int) -> str:
        """Return the prefix of the keys in a round's store."""
        return f"{self.root}kv/v_{version}/"


@dataclass(frozen=True)
class LegacySettings:
    """The protocol's settings. Durations are in seconds.

    Args:
        run_id: the job's run ID; not empty.
        min_nodes, max_nodes: 1 <= min_nodes <= max_nodes.
        timeout: time limit for `next_rendezvous`, including the time during which another round runs; above 0.
        last_call: time for more nodes to join once the minimum has joined; 0 or more.
        prefix: prefix of all runs' keys in etcd.
        setup: time limit for the creator of a rendezvous to open it (the setup timeout).
        confirm: time limit for the next participant to confirm (the confirm timeout).
        keep_alive: how long a node may go without renewing its lease before it is considered lost. etcd grants at least
            2 s.
        kept: how long a run's document is kept after its last writer exits (the retention time).

    Raises:
        ValueError: the run ID is empty, or a number of nodes is out of range.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: Duration = 600.0
    last_call: Duration = 30.0
    prefix: str = DEFAULT_PREFIX
    setup: Duration = 5.0
    confirm: Duration = 10.0
    keep_alive: Duration = 10.0
    kept: Duration = 7200.0

    def __post_init__(self) -> None:
        if not self.run_id:
            raise ValueError("the run id is empty; set --rdzv-id")
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(f"expected 1 <= min_nodes <= max_nodes, found {self.min_nodes} and {self.max_nodes}")

    @property
    def bounds(self) -> Bounds:
        """The minimum and maximum number of nodes in a round."""
        return Bounds(self.min_nodes, self.max_nodes)

    @property
    def keys(self) -> Keys:
        """The run's keys in etcd."""
        return Keys(self.prefix, self.run_id)
