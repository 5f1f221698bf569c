"""The configuration of a campaign: its job, rendezvous, machines and servers."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_testing.campaign.storm import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elastic_testing.machines import Machine

WORKER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("worker.py")))
"""The command of the lightweight worker. It runs without site-packages, which would take most of its start time."""

GROUPS = Path("/sys/fs/cgroup/memory")
"""The directory of control groups with a memory limit (cgroup v1)."""


@dataclass(frozen=True)
class Server:
    """A store process outside the agents, such as an etcd member. `machine` is the simulated machine that runs it
    (default: the real one)."""

    command: Sequence[str]
    machine: Machine | None = None


@dataclass(frozen=True)
class Setting:
    """A job of a campaign.

    Args:
        backend, endpoint, conf: the rendezvous settings; `conf` becomes `--rdzv-conf`.
        nodes: maximum number of nodes (3), with one worker each.
        looked_at: the endpoint for `elastic status` and `elastic drain`, if the nodes have none.
        secret: the file for `--rdzv-secret-file`.
        flags: further flags for `elastic run` on all nodes.
        own: a function that returns further flags for the node at a place.
        fixed: whether the minimum number of nodes equals the maximum (false). If not, the minimum is just over half, or
            the number of nodes that start with the job if that is less.
        launcher: the command that starts an agent (`elastic run`).
        worker: the workers' command (default: a lightweight program of this package). It must write the events that
            `history` describes.
        machines: simulated machines: first one for each node, and then any others. If there are none, all processes run
            on the real machine.
        servers: store processes, which are started before the nodes.
        have: available prerequisites of faults (see `FaultKind.needs`) that cannot be derived from the other settings.
            With `joins`, storms that are drawn start the last node later. With `hosted`, the nodes host the store, so
            it is lost with the last of them.
        ready: called before each wave; returns whether the store can survive the faults of a wave.
        left: called at the end; returns a line for each item that remains in the store.
        environment: further environment variables for agents and commands.
        limit_s: time limit in seconds for the job to recover (90).
    """

    backend: str
    endpoint: str
    nodes: int = 3
    conf: Mapping[str, str] = field(default_factory=dict)
    looked_at: str = ""
    secret: str = ""
    flags: Sequence[str] = ()
    own: Callable[[int], Sequence[str]] = lambda place: ()
    fixed: bool = False
    launcher: Sequence[str] = field(default_factory=lambda: (sys.executable, "-m", "elastic_core", "run"))
    worker: Sequence[str] = field(default_factory=lambda: ("--no-python", *WORKER))
    machines: Sequence[Machine] = ()
    servers: Sequence[Server] = ()
    have: frozenset[str] = frozenset({"elastic"})
    ready: Callable[[], bool] = lambda: True
    left: Callable[[], Sequence[str]] = lambda: ()
    environment: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 90.0

    @property
    def there(self) -> frozenset[str]:
        """All available prerequisites of faults."""
        found = set(self.have)
        if self.machines:
            found |= {"machines"}
            found |= {"nft"} if shutil.which("nft") else set()
        found |= {"cc"} if shutil.which("cc") else set()
        found |= {"members"} if self.servers else set()
        found |= {"memory"} if os.access(GROUPS, os.W_OK) else set()
        return frozenset(found)


def kinds_of(setting: Setting) -> list[str]:
    """Return the kinds of faults whose prerequisites are available."""
    there = setting.there
    return [name for name, kind in KINDS.items() if there.issuperset(kind.needs)]
