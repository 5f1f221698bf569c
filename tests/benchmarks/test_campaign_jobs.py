"""The jobs that a campaign draws; no job runs."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.campaign import WORLDS, Shape

pytestmark = pytest.mark.unit
SEEDS = [f"1/{number}" for number in range(400)]


def shapes(world):
    return [Shape.drawn(world, seed) for seed in SEEDS]


@pytest.mark.parametrize("world", [*WORLDS, "torchrun"])
def test_seed_determines_the_job(world):
    assert shapes(world) == shapes(world)
    assert len(set(shapes(world))) > 5


@pytest.mark.parametrize("world", ["c10d", "etcd", "etcd served", "sqlite"])
def test_second_node_joins_one_job_in_five_later(world):
    joining = [shape for shape in shapes(world) if shape.joins]
    assert 0.15 < len(joining) / len(SEEDS) < 0.25
    assert {shape.nodes for shape in joining} == {2}


@pytest.mark.parametrize("world", ["static", "torchrun"])
def test_no_node_joins_without_an_elastic_rendezvous(world):
    assert not any(shape.joins for shape in shapes(world))


def test_one_job_in_five_serves_etcd_with_two_nodes_from_the_start():
    served = [shape for shape in shapes("etcd served") if not shape.joins]
    assert 0.15 < Counter(shape.nodes for shape in served)[2] / len(served) < 0.25


def test_odd_number_of_nodes_serves_etcd():
    """Agents refuse an even number."""
    assert {(shape.nodes, shape.served) for shape in shapes("etcd served")} == {(2, 1), (3, 3), (4, 3), (5, 3)}
    assert {shape.served for world in WORLDS if world != "etcd served" for shape in shapes(world)} == {0}
