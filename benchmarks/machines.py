"""Machines on this machine: network name spaces, each with a link and an address of its own on one bridge.

Root only, with Debian's iproute2. What is made is taken away by `close`, with all processes that still run in it;
nothing outside these name spaces is touched. Links can be cut, and made slow or lossy (`tc netem`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

_NET = "10.97.0"


def missing() -> str:
    """Why no machines can be made here; empty if they can."""
    if os.geteuid() != 0:
        return "only root may make network name spaces"
    tools = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"{' and '.join(tools)} not found (Debian's package iproute2)" if tools else ""


@dataclass(frozen=True)
class Machine:
    """One of them.

    Args:
        space: the name of its name space.
        address: on the bridge, where the others reach it.
        link: the end of its link that is outside, at the bridge.
    """

    space: str
    address: str
    link: str

    @property
    def through(self) -> list[str]:
        """What a command begins with that is to run there."""
        return ["ip", "netns", "exec", self.space]

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which agents and workers use its link."""
        return {"GLOO_SOCKET_IFNAME": "eth0", "ELASTIC_LOCAL_ADDR": self.address}

    def pids(self) -> list[int]:
        """Of all processes that run there."""
        found = subprocess.run(["ip", "netns", "pids", self.space], check=False, capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def run(self, *command: str) -> str:
        """What a command prints that runs there."""
        return subprocess.run([*self.through, *command], check=True, capture_output=True, text=True).stdout

    def listens(self, port: int) -> bool:
        """Whether a process there listens at this port."""
        return bool(self.run("ss", "-Hltn", f"sport = :{port}"))

    def cut(self) -> None:
        """Its link is gone, without a word to anybody."""
        _ip("link", "set", self.link, "down")

    def mend(self) -> None:
        """The link is back."""
        _ip("link", "set", self.link, "up")

    def off(self) -> None:
        """As when its plug is pulled: nothing gets out any more, and nothing runs there. `mend` starts it again."""
        self.cut()
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def shape(self, *netem: str) -> None:
        """What leaves it is delayed, lost or reordered, as tc-netem(8) says; with nothing, no longer."""
        subprocess.run(["ip", "netns", "exec", self.space, "tc", "qdisc", "del", "dev", "eth0", "root"],
                       check=False, capture_output=True)  # fmt: skip
        if netem:
            command = [*self.through, "tc", "qdisc", "add", "dev", "eth0", "root", "netem", *netem]
            subprocess.run(command, check=True, capture_output=True)

    def loses(self, other: Machine) -> None:
        """What leaves it for the other one does not arrive; the other way may be free."""
        _ip("-n", self.space, "route", "replace", "blackhole", f"{other.address}/32")

    def finds(self, other: Machine) -> None:
        """Ends `loses`."""
        _ip("-n", self.space, "route", "del", "blackhole", f"{other.address}/32")


class Machines:
    """So many of them: 10.97.0.1 and so on."""

    def __init__(self, count: int) -> None:
        mark = uuid.uuid4().hex[:6]
        self._bridge = f"elb{mark}"
        self._made: list[Machine] = []
        _ip("link", "add", self._bridge, "type", "bridge")
        try:
            _ip("link", "set", self._bridge, "up")
            for number in range(1, count + 1):
                self._make(Machine(f"el{mark}{number}", f"{_NET}.{number}", f"el{mark}{number}h"))
        except BaseException:
            self.close()
            raise

    def _make(self, machine: Machine) -> None:
        _ip("netns", "add", machine.space)
        self._made.append(machine)
        _ip("link", "add", machine.link, "type", "veth", "peer", "name", "eth0", "netns", machine.space)
        _ip("link", "set", machine.link, "master", self._bridge, "up")
        for command in (f"addr add {machine.address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _ip("-n", machine.space, *command.split())

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, place: int) -> Machine:
        return self._made[place]

    def __iter__(self) -> Iterator[Machine]:
        return iter(self._made)

    def apart(self, one: Machine, other: Machine) -> None:
        """They do not reach each other any more."""
        one.loses(other)
        other.loses(one)

    def together(self, one: Machine, other: Machine) -> None:
        """Ends `apart`."""
        one.finds(other)
        other.finds(one)

    def close(self) -> None:
        """Whatever still runs there ends. Idempotent."""
        for machine in self._made:
            machine.off()
            subprocess.run(["ip", "netns", "del", machine.space], check=False, capture_output=True)
        self._made.clear()
        subprocess.run(["ip", "link", "del", self._bridge], check=False, capture_output=True)


@contextlib.contextmanager
def machines(count: int) -> Iterator[Machines]:
    """So many, until the end of the block."""
    made = Machines(count)
    try:
        yield made
    finally:
        made.close()


def _ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True, capture_output=True)
