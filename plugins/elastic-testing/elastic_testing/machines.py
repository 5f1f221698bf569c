"""Simulated machines: network namespaces on one bridge, each with its own link, address and host names.

Requires root and Debian's iproute2. `Machines.close` kills the processes in the namespaces, and removes the namespaces
and the bridge. Nothing else on the real machine changes. Links can be cut, slowed down, and made lossy. netem, which
minimal kernels lack, is not required.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NET = "10.97.0"
_ETC = Path("/etc/netns")


def missing() -> str:
    """Return the reason why machines cannot be created here, or an empty string if they can."""
    if os.geteuid() != 0:
        return "only root can create network namespaces"
    tools = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"{' and '.join(tools)} not found (Debian's package iproute2)" if tools else ""


@dataclass(frozen=True)
class Machine:
    """One simulated machine.

    Args:
        space: the name of its network namespace.
        address: its address on the bridge.
        link: the name of the network device at the bridge's end of the machine's link.
    """

    space: str
    address: str
    link: str

    @property
    def through(self) -> list[str]:
        """The prefix of a command that runs on this machine."""
        return ["ip", "netns", "exec", self.space]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make agents and workers use the machine's link."""
        return {"GLOO_SOCKET_IFNAME": "eth0", "ELASTIC_LOCAL_ADDR": self.address}

    def pids(self) -> list[int]:
        """Return the IDs of all processes on this machine."""
        found = subprocess.run(["ip", "netns", "pids", self.space], check=False, capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def run(self, *command: str) -> str:
        """Run a command on this machine, and return its output."""
        return subprocess.run([*self.through, *command], check=True, capture_output=True, text=True).stdout

    def listens(self, port: int) -> bool:
        """Return whether a process on this machine is listening on this TCP port."""
        return bool(self.run("ss", "-Hltn", f"sport = :{port}"))

    def cut(self) -> None:
        """Cut the machine's link silently, so that no connection is closed or reset."""
        _ip("link", "set", self.link, "down")

    def mend(self) -> None:
        """Restore its link."""
        _ip("link", "set", self.link, "up")

    def off(self) -> None:
        """Power off: cut the link and kill all processes. `mend` restores the link."""
        self.cut()
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def shape(self, *qdisc: str) -> None:
        """Set the queueing discipline for outgoing packets (see tc(8)), such as
        `tbf rate 64kbit burst 2kb latency 5s`. Without arguments, restore the default."""
        subprocess.run([*self.through, "tc", "qdisc", "del", "dev", "eth0", "root"], check=False, capture_output=True)
        if qdisc:
            self.run("tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:", *qdisc)

    def drops(self, one_in: int) -> None:
        """Drop one in `one_in` incoming packets at random, or none if `one_in` is 0. Requires Debian's nftables."""
        self._filter("input", [f'iif != "lo" numgen random mod {one_in} < 1 drop'] if one_in else [])

    def disorders(self, one_in: int) -> None:
        """Send one in `one_in` outgoing packets through a 64 kbit/s queue, so that later packets overtake it, and
        duplicate one packet in 20. If `one_in` is 0, do neither. Requires Debian's nftables."""
        self.shape(*("htb", "default", "1") if one_in else ())
        self._filter("output", [])
        if one_in:
            for word, rate in ("1", "100mbit"), ("2", "64kbit"):
                queue = ("parent", "1:", "classid", f"1:{word}", "htb", "rate", rate, "burst", "100", "cburst", "100")
                self.run("tc", "class", "add", "dev", "eth0", *queue)
            slow = f"numgen random mod {one_in} < 1 meta priority set 1:2"
            twice = 'oif != "lo" numgen random mod 20 < 1 dup to ip daddr device "eth0"'
            self._filter("output", [slow, twice])

    def _filter(self, way: str, rules: list[str]) -> None:
        """Set the nft(8) rules for the direction "input" or "output"; an empty list removes them."""
        table = f"add table ip {way}\ndelete table ip {way}\n"
        if rules:
            chain = "\n".join([f"type filter hook {way} priority 0;", *rules])
            table += f"table ip {way} {{\nchain faults {{\n{chain}\n}}\n}}\n"
        subprocess.run([*self.through, "nft", "-f", "-"], check=True, capture_output=True, input=table.encode())

    def names(self) -> tuple[str, str]:
        """Return the content of the machine's hosts file and the address of its name server, which are the arguments of
        `name`."""
        return self._etc("hosts").read_text(), self._etc("resolv.conf").read_text().split()[1]

    def name(self, hosts: str, resolver: str) -> None:
        """Set the content of the machine's hosts file and the address of its name server. The change also affects
        running processes."""
        self._etc("hosts").write_text(hosts)
        self._etc("resolv.conf").write_text(f"nameserver {resolver}\n")

    def _etc(self, name: str) -> Path:
        return _ETC / self.space / name  # `ip netns exec` mounts these files over those in /etc

    def loses(self, other: Machine) -> None:
        """Drop all packets from this machine to the other one, but none in the opposite direction."""
        _ip("-n", self.space, "route", "replace", "blackhole", f"{other.address}/32")

    def finds(self, other: Machine) -> None:
        """Undo `loses`."""
        _ip("-n", self.space, "route", "del", "blackhole", f"{other.address}/32")


class Machines:
    """`count` simulated machines, with the addresses 10.97.0.1, 10.97.0.2, ... and the names machine1, machine2, ..."""

    def __init__(self, count: int) -> None:
        mark = uuid.uuid4().hex[:6]
        self._bridge = f"elb{mark}"
        self._made: list[Machine] = []
        named = (f"{_NET}.{number} machine{number}\n" for number in range(1, count + 1))
        self._hosts = "".join([Path("/etc/hosts").read_text(), *named])
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
        (_ETC / machine.space).mkdir(parents=True)
        machine.name(self._hosts, _resolver())
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
        """Disconnect two machines from each other."""
        one.loses(other)
        other.loses(one)

    def together(self, one: Machine, other: Machine) -> None:
        """Undo `apart`."""
        one.finds(other)
        other.finds(one)

    def close(self) -> None:
        """Kill all processes and remove the machines. Idempotent."""
        for machine in self._made:
            machine.off()
            subprocess.run(["ip", "netns", "del", machine.space], check=False, capture_output=True)
            shutil.rmtree(_ETC / machine.space, ignore_errors=True)
        self._made.clear()
        subprocess.run(["ip", "link", "del", self._bridge], check=False, capture_output=True)


def machines(count: int) -> contextlib.closing[Machines]:
    """Create `count` machines for the duration of the context."""
    return contextlib.closing(Machines(count))


def _resolver() -> str:
    """Return the address of the real machine's name server, or 127.0.0.1 if none is configured."""
    with contextlib.suppress(OSError):
        for line in Path("/etc/resolv.conf").read_text().splitlines():
            if line.startswith("nameserver "):
                return line.split()[1]
    return "127.0.0.1"


def _ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True, capture_output=True)
