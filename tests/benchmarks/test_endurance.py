"""Nothing grows in a job whose agents are killed: a short job in every run, one of 1,000 rounds in the nightly tier."""

from __future__ import annotations

import pytest

from benchmarks import endurance

pytest.importorskip("torch")
pytest.importorskip("grpc")

# Over c10d, the number of kept old states reaches its limit after 40 rounds.
SHORT = [("c10d", "follows", (40, 80), 5), ("etcd", "leads", (10, 30), 5)]
NIGHTLY = pytest.mark.nightly, pytest.mark.timeout(1800)
LONG = [
    pytest.param(backend, manner, (100, 500, 1000), 10, marks=NIGHTLY)
    for backend in endurance.SERVERS
    for manner in endurance.MANNERS
]


@pytest.mark.torch
@pytest.mark.parametrize(("backend", "manner", "rounds", "every"), [*SHORT, *LONG])
def test_keys_threads_and_descriptors_do_not_grow(backend, manner, rounds, every):
    seen = endurance.endure(backend, manner, rounds, every, seed=7)
    assert len(seen) == len(rounds)
    assert seen[-1]["killed"] > rounds[-1] // every // 2
    grown = [(row.what, row.unit) for row in endurance.rows(backend, manner, seen) if row.met is False]
    assert not grown, seen
