"""Out-of-memory kills: distinguishes the kernel's SIGKILL from others, where the kernel counts them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class OomVerdict:
    """What the counters say about a SIGKILL that we did not send."""

    killed: bool
    explanation: str


NOT_OOM = OomVerdict(False, "")


@dataclass(frozen=True)
class OomCounter:
    """A file of `name value` lines that counts kills, and the scope in which it counts."""

    path: Path
    scope: str

    def read(self) -> int:
        """The count; 0 where the file is missing or does not say."""
        try:
            lines = self.path.read_text().splitlines()
        except OSError:
            return 0
        return next((int(value) for name, value in map(_pair, lines) if name == "oom_kill" and value.isdigit()), 0)


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(" ")
    return name, value.strip()


class OomWatch:
    """Remembers the counters at the start of a round and compares them when a worker was killed."""

    def __init__(self, counters: tuple[OomCounter, ...]) -> None:
        self._before = {counter: counter.read() for counter in counters}

    def verdict(self) -> OomVerdict:
        """Whether a kill was counted since the start; the narrowest counter speaks first."""
        for counter, before in self._before.items():
            if counter.read() > before:
                return OomVerdict(True, f"the kernel counted such a kill {counter.scope}")
        return NOT_OOM


def counters_of_this_machine(
    own_cgroups: Path = Path("/proc/self/cgroup"), cgroup_root: Path = Path("/sys/fs/cgroup")
) -> tuple[OomCounter, ...]:
    """The counters that exist here: of our memory cgroup, else of the whole machine, which counts all kills there."""
    try:
        lines = own_cgroups.read_text().splitlines()
    except OSError:
        lines = []
    own = tuple(counter for counter in _cgroup_counters(lines, cgroup_root) if counter.path.exists())
    return own or (OomCounter(Path("/proc/vmstat"), "on this machine"),)


def _cgroup_counters(lines: list[str], root: Path) -> list[OomCounter]:
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        scope = f"in the control group {path}"
        if controllers == "":
            found.append(OomCounter(root / path.lstrip("/") / "memory.events", scope))
        elif "memory" in controllers.split(","):
            found.append(OomCounter(root / "memory" / path.lstrip("/") / "memory.oom_control", scope))
    return found
