"""What job a campaign is for: where its nodes meet, on which machines, with which servers."""

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
"""The command of the cheap worker: without site-packages, which would cost more than all else that it does."""

GROUPS = Path("/sys/fs/cgroup/memory")
"""Where control groups with a limit of memory are made."""


@dataclass(frozen=True)
class Server:
    """A process of the store that is no agent's, such as a member of an etcd: `command`, on this machine if on one."""

    command: Sequence[str]
    machine: Machine | None = None


@dataclass(frozen=True)
class Setting:
    """A job of a campaign.

    Args:
        backend: where the nodes meet, with `endpoint`, and `conf`, which becomes `--rdzv-conf`.
        nodes: how many the job takes; each has one worker. More than half of them may go on alone, unless `fixed`.
        secret: the file that becomes `--rdzv-secret-file`.
        flags: more of `elastic run`; `own` gives those of one place.
        launcher: the command instead of `elastic run`.
        worker: what the nodes run; it writes the events of `history`.
        machines: one for each node, and then others; without them all run here.
        servers: of the store, which stand before the nodes come.
        have: what is there of what kinds of faults need, besides what follows from the rest.
        looked_at: the endpoint for `status` and `drain`, where the nodes are given none.
        ready: whether the store is whole again, which is asked before the next wave.
        left: tells what is left in the store at the end, a line each.
        limit_s: within which the job has to be whole again, in seconds.
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
        """For which kinds of faults there is what they need."""
        found = set(self.have)
        if self.machines:
            found |= {"machines"}
            found |= {"nft"} if shutil.which("nft") else set()
        found |= {"cc"} if shutil.which("cc") else set()
        found |= {"members"} if self.servers else set()
        found |= {"memory"} if os.access(GROUPS, os.W_OK) else set()
        return frozenset(found)


def kinds_of(setting: Setting) -> list[str]:
    """The kinds of faults that can be done to it."""
    there = setting.there
    return [name for name, kind in KINDS.items() if there.issuperset(kind.needs)]
