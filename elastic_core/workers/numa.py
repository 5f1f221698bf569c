"""Chooses the processors on which each worker may run (NUMA binding).

The four modes are torchrun's. If the machine's description lacks information that a mode needs, workers are not bound,
because a slow job is better than no job."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.workers.process import NO_CPUS

if TYPE_CHECKING:
    from elastic_core.workers.process import Cpus

Mode = Literal["node", "socket", "exclusive", "core-complex"]
MODES: tuple[Mode, ...] = get_args(Mode)


def mode_of(options: Any) -> Mode | None:
    """Return the mode that `options` selects, or None for no binding. `options` is a mode's name or torch's
    `NumaOptions`, of which only `affinity_mode` is used. Raises ConfigurationError if there is no such mode."""
    given = getattr(options, "affinity_mode", options)
    word: Mode | None = getattr(given, "value", given)
    if word is not None and word not in MODES:
        raise ConfigurationError(Problem("numa_options", f"expected one of {', '.join(MODES)}, found {word!r}"))
    return word


@dataclass(frozen=True)
class Cpu:
    """One logical processor: its NUMA node, socket, physical core and last-level cache."""

    number: int
    node: int
    socket: int
    core: int
    cache: int


_NOWHERE = -1  # a NUMA node without processors


@dataclass(frozen=True)
class Machine:
    """The processors that this process may use, and the NUMA node of each accelerator, in order of index."""

    cpus: tuple[Cpu, ...] = ()
    device_nodes: tuple[int, ...] = ()

    def node_of(self, local_rank: int, workers: int) -> int | None:
        """Return the NUMA node of the worker's accelerator. Without accelerators, workers are spread over the nodes."""
        if local_rank < len(self.device_nodes):
            return self.device_nodes[local_rank]
        nodes = sorted({cpu.node for cpu in self.cpus})
        if self.device_nodes or not nodes:
            return None
        return nodes[local_rank * len(nodes) // max(workers, 1)]

    def seen_through(self, visible: str | None) -> Machine:
        """Return the same machine, with its devices numbered as in CUDA_VISIBLE_DEVICES.

        As in CUDA, the list of devices ends at the first index that does not exist. The NUMA node of a device that is
        not identified by an index is unknown."""
        if visible is None or not self.device_nodes:
            return self
        nodes: list[int] = []
        for name in filter(None, map(str.strip, visible.split(","))):
            if name.isdecimal() and int(name) >= len(self.device_nodes):
                break
            nodes.append(self.device_nodes[int(name)] if name.isdecimal() else _NOWHERE)
        return replace(self, device_nodes=tuple(nodes))


def _share(own: list[Cpu], place: int, sharers: int) -> Cpus:
    """Return one worker's share of the processors. No two workers share a physical core."""
    cores = sorted({cpu.core for cpu in own})
    mine = set(cores[place * len(cores) // sharers : (place + 1) * len(cores) // sharers])
    return frozenset(cpu.number for cpu in own if cpu.core in mine)


def _cache_group(own: list[Cpu], place: int) -> Cpus:
    """Return a group of processors that share a last-level cache. The groups are assigned to workers in turn, starting
    with the largest."""
    groups: dict[int, list[int]] = {}
    for cpu in own:
        groups.setdefault(cpu.cache, []).append(cpu.number)
    ordered = sorted(groups.values(), key=lambda group: (-len(group), group))
    return frozenset(ordered[place % len(ordered)])


@dataclass(frozen=True)
class Binding:
    """A binding mode and the machine to which it applies."""

    mode: Mode
    machine: Machine

    def cpus_for(self, local_rank: int, workers: int) -> Cpus:
        """Return the processors for one worker. An empty set means no binding, because the machine's description lacks
        information that the mode needs, or because the worker's node has fewer cores than workers."""
        node = self.machine.node_of(local_rank, workers)
        own = [cpu for cpu in self.machine.cpus if cpu.node == node]
        if not own:
            return NO_CPUS
        if self.mode == "node":
            return frozenset(cpu.number for cpu in own)
        if self.mode == "socket":
            sockets = {cpu.socket for cpu in own}
            return frozenset(cpu.number for cpu in self.machine.cpus if cpu.socket in sockets)
        neighbours = [r for r in range(workers) if self.machine.node_of(r, workers) == node]
        place = neighbours.index(local_rank)
        if self.mode == "exclusive":
            return _share(own, place, len(neighbours))
        return _cache_group(own, place)

    def seen_through(self, visible: str | None) -> Binding:
        """Return the binding for devices that are numbered as in CUDA_VISIBLE_DEVICES."""
        return replace(self, machine=self.machine.seen_through(visible))


def read_machine(sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc")) -> Machine:
    """Describe this machine, as far as the kernel exposes the information."""
    allowed = sorted(os.sched_getaffinity(0))
    cpus = tuple(cpu for number in allowed if (cpu := _read_cpu(number, sys_root)) is not None)
    return Machine(cpus, _read_device_nodes(sys_root, proc_root))


def _read_cpu(number: int, sys_root: Path) -> Cpu | None:
    folder = sys_root / f"devices/system/cpu/cpu{number}"
    node = next((int(link.name[4:]) for link in folder.glob("node[0-9]*")), None)
    socket, core = (_read_int(folder / "topology" / name) for name in ("physical_package_id", "core_id"))
    if node is None or socket is None or core is None:
        return None
    caches = sorted(folder.glob("cache/index[0-9]*"), key=lambda index: int(index.name[5:]))
    shared = (caches[-1] / "shared_cpu_list") if caches else folder / "topology/core_cpus_list"
    first = re.match(r"\d+", _read_text(shared))
    return Cpu(number, node, socket, socket * 1_000_000 + core, int(first.group()) if first else number)


def _read_device_nodes(sys_root: Path, proc_root: Path) -> tuple[int, ...]:
    """Return the NUMA nodes of NVIDIA devices, in the order of their bus addresses, as the driver numbers them, and as
    CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    addresses = sorted(folder.name.lower() for folder in proc_root.glob("driver/nvidia/gpus/*"))
    nodes = (_read_int(sys_root / "bus/pci/devices" / address / "numa_node") for address in addresses)
    return tuple(max(node or 0, 0) for node in nodes)  # a machine with one node reports -1


def _read_int(path: Path) -> int | None:
    text = _read_text(path)
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
