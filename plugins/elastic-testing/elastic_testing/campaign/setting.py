"""The setting of a campaign: its job, rendezvous, machines and servers."""

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
"""The command of the cheap worker, without site-packages, whose import would take most of its time."""

GROUPS = Path("/sys/fs/cgroup/memory")
"""The directory of control groups with a memory limit (cgroup v1)."""


@dataclass(frozen=True)
class Server:
    """A store process outside the agents, such as an etcd member. `machine`: the simulated machine that runs it; None:
    the real one."""

    command: Sequence[str]
    machine: Machine | None = None


@dataclass(frozen=True)
class Setting:
    """A job of a campaign.

    Args:
        backend, endpoint, conf: the rendezvous; `conf` becomes `--rdzv-conf`.
        nodes: maximum number of nodes (3), with one worker each. The minimum is just over half of it, unless `fixed`.
        secret: the file for `--rdzv-secret-file`.
        flags: more flags of `elastic run`; `own` returns those of one node.
        launcher: the command to use instead of `elastic run`.
        worker: the workers' command, which writes events of `history`.
        machines: one per node, and then others; without them, all processes run on the real machine.
        servers: store processes, which are started before the nodes.
        have: available prerequisites of faults that cannot be derived from the other settings.
        looked_at: the endpoint for `status` and `drain`, if the nodes have none.
        ready: returns whether the store has recovered; called before the next wave.
        left: returns a line for each remaining item in the store, at the end.
        limit_s: seconds within which the job must recover (90).
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
    launcher: Sequence[str] = (sys.executable, "-m", "elastic_core", "run")
    worker: Sequence[str] = ("--no-python", *WORKER)
    machines: Sequence[Machine] = ()
    servers: Sequence[Server] = ()
    have: frozenset[str] = frozenset({"elastic"})
    ready: Callable[[], bool] = lambda: True
    left: Callable[[], Sequence[str]] = lambda: ()
    environment: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 90.0

    @property
    def there(self) -> frozenset[str]:
        """The available prerequisites of faults."""
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
