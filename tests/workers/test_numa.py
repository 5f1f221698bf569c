"""NUMA binding: the CPUs chosen in each mode, reading the topology, and the binding itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.workers.numa import MODES, Binding, Cpu, Machine, read_machine
from elastic_core.workers.process import NO_CPUS, bind, bound_to_cpus

# 2 sockets x 2 nodes x 2 caches x 2 cores x 2 threads; thread siblings are 16 apart, as firmware likes to number them.
CPUS = tuple(
    Cpu(number, node=number % 16 // 4, socket=number % 16 // 8, core=number % 16, cache=number % 16 // 2)
    for number in range(32)
)
PLAIN = Machine(CPUS)
WITH_DEVICES = Machine(CPUS, (3, 3, 0, 1))


def cores(cpus):
    return {CPUS[number].core for number in cpus}


def nodes(cpus):
    return {CPUS[number].node for number in cpus}


def choose_all(mode, machine, workers):
    return [Binding(mode, machine).cpus_for(rank, workers) for rank in range(workers)]


def test_node_mode_uses_the_whole_node():
    for rank, node in enumerate(WITH_DEVICES.device_nodes):
        assert Binding("node", WITH_DEVICES).cpus_for(rank, 4) == {cpu.number for cpu in CPUS if cpu.node == node}


def test_socket_mode_uses_the_whole_socket():
    for rank, node in enumerate(WITH_DEVICES.device_nodes):
        own = {cpu.number for cpu in CPUS if cpu.socket == node // 2}
        assert Binding("socket", WITH_DEVICES).cpus_for(rank, 4) == own


@given(st.integers(1, 16))
def test_exclusive_mode_neither_shares_nor_splits_cores(workers):
    chosen = choose_all("exclusive", PLAIN, workers)
    for number, own in enumerate(chosen):
        assert own
        assert len(nodes(own)) == 1
        assert own == {cpu.number for cpu in CPUS if cpu.core in cores(own)}
        assert all(not own & other for other in chosen[:number])


@given(st.integers(1, 16))
def test_exclusive_mode_uses_all_cores_of_a_used_node(workers):
    chosen = choose_all("exclusive", PLAIN, workers)
    together = frozenset().union(*chosen)
    assert together == {cpu.number for cpu in CPUS if cpu.node in nodes(together)}
    for node in nodes(together):
        sizes = [len(cores(own)) for own in chosen if nodes(own) == {node}]
        assert max(sizes) - min(sizes) <= 1


def test_exclusive_mode_leaves_surplus_workers_unbound():
    chosen = choose_all("exclusive", PLAIN, 20)
    assert [own for own in chosen if own]
    assert NO_CPUS in chosen
    assert sum(map(len, chosen)) == len(frozenset().union(*chosen))


@given(st.integers(1, 40))
def test_core_complex_mode_assigns_caches_in_turn(workers):
    chosen = choose_all("core-complex", PLAIN, workers)
    groups = [frozenset(cpu.number for cpu in CPUS if cpu.cache == cache) for cache in range(8)]
    uses = [chosen.count(group) for group in groups]
    assert sum(uses) == workers
    for node in range(4):
        assert abs(uses[2 * node] - uses[2 * node + 1]) <= 1


def test_core_complex_mode_prefers_larger_caches():
    cpus = tuple(Cpu(number, 0, 0, number, cache) for number, cache in enumerate([0, 1, 1, 1, 2, 2]))
    assert choose_all("core-complex", Machine(cpus), 4) == [{1, 2, 3}, {4, 5}, {0}, {1, 2, 3}]


@given(st.integers(1, 40))
def test_workers_without_devices_spread_evenly(workers):
    placed = [PLAIN.node_of(rank, workers) for rank in range(workers)]
    counts = [placed.count(node) for node in range(4)]
    assert max(counts) - min(counts) <= 1
    assert placed == sorted(placed)


@pytest.mark.parametrize("mode", MODES)
def test_worker_without_topology_data_stays_unbound(mode):
    assert Binding(mode, Machine()).cpus_for(0, 1) == NO_CPUS
    assert Binding(mode, WITH_DEVICES).cpus_for(4, 5) == NO_CPUS
    assert Binding(mode, Machine(CPUS, (9,))).cpus_for(0, 1) == NO_CPUS


@pytest.mark.parametrize(
    ("visible", "places"),
    [
        (None, (3, 3, 0, 1)),
        ("3,0", (1, 3)),
        (" 2 , 2,", (0, 0)),
        ("1,9,0", (3,)),
        ("GPU-1234,0", (-1, 3)),
        ("", ()),
    ],
)
def test_device_numbers_follow_cuda_visible_devices(visible, places):
    assert WITH_DEVICES.seen_through(visible).device_nodes == places
    assert Binding("node", WITH_DEVICES).seen_through(visible).machine.device_nodes == places


# -- topology


def describe_cpu(root, number, node, socket, core, cache):
    folder = root / f"devices/system/cpu/cpu{number}"
    (folder / "topology").mkdir(parents=True)
    (folder / "topology/physical_package_id").write_text(f"{socket}\n")
    (folder / "topology/core_id").write_text(f"{core}\n")
    (folder / "topology/core_cpus_list").write_text(f"{number}\n")
    (folder / f"node{node}").mkdir()
    for index, first in ((0, number), (3, cache), (10, cache)):
        (folder / f"cache/index{index}").mkdir(parents=True)
        (folder / f"cache/index{index}/shared_cpu_list").write_text(f"{first}-{first + 1},77\n")


def test_topology_is_read_from_files(tmp_path):
    allowed = sorted(os.sched_getaffinity(0))
    for number in allowed:
        describe_cpu(tmp_path / "sys", number, node=number % 2, socket=3, core=number + 5, cache=40)
    for address, node in (("0000:81:00.0", 1), ("0000:41:00.0", -1), ("0000:C1:00.0", None)):
        (tmp_path / f"proc/driver/nvidia/gpus/{address}").mkdir(parents=True)
        device = tmp_path / f"sys/bus/pci/devices/{address.lower()}"
        device.mkdir(parents=True)
        if node is not None:
            (device / "numa_node").write_text(f"{node}\n")
    machine = read_machine(tmp_path / "sys", tmp_path / "proc")
    assert machine.device_nodes == (0, 1, 0)
    assert [(cpu.number, cpu.node, cpu.socket, cpu.cache) for cpu in machine.cpus] == [
        (n, n % 2, 3, 40) for n in allowed
    ]
    assert len({cpu.core for cpu in machine.cpus}) == len(allowed)


def test_equal_core_ids_on_two_sockets_are_distinct_cores(tmp_path):
    allowed = sorted(os.sched_getaffinity(0))
    for number in allowed:
        describe_cpu(tmp_path, number, node=0, socket=number, core=0, cache=number)
    assert len({cpu.core for cpu in read_machine(tmp_path, tmp_path).cpus}) == len(allowed)


def test_core_without_cache_data_has_its_own_cache(tmp_path):
    first = min(os.sched_getaffinity(0))
    folder = tmp_path / f"devices/system/cpu/cpu{first}"
    (folder / "topology").mkdir(parents=True)
    (folder / "node0").mkdir()
    (folder / "topology/physical_package_id").write_text("0")
    (folder / "topology/core_id").write_text("0")
    assert read_machine(tmp_path, tmp_path).cpus == (Cpu(first, 0, 0, 0, first),)
    (folder / "topology/core_cpus_list").write_text("5,9")
    assert read_machine(tmp_path, tmp_path).cpus[0].cache == 5


def test_missing_topology_files_give_an_empty_machine(tmp_path):
    first = min(os.sched_getaffinity(0))
    (tmp_path / f"devices/system/cpu/cpu{first}/topology").mkdir(parents=True)
    assert read_machine(tmp_path, tmp_path) == Machine()


# -- binding

PRINT_AFFINITY = "import os; print(sorted(os.sched_getaffinity(0)))"


@pytest.mark.integration
def test_children_are_bound_but_this_process_is_not():
    before = os.sched_getaffinity(0)
    one = frozenset({max(before)})
    with bound_to_cpus(one):
        done = subprocess.run([sys.executable, "-S", "-c", PRINT_AFFINITY], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(sorted(one))
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("cpus", [NO_CPUS, frozenset({100_000})])
def test_empty_or_invalid_cpu_sets_change_nothing(cpus):
    before = os.sched_getaffinity(0)
    with bound_to_cpus(cpus):
        assert os.sched_getaffinity(0) == before
    bind(cpus)
    assert os.sched_getaffinity(0) == before
