"""A job whose agents are killed leaves nothing behind that grows: a short one here, one of 1,000 rounds at night."""

from __future__ import annotations

import os

import pytest

from benchmarks import endurance

pytest.importorskip("torch")
pytest.importorskip("grpc")

AT_NIGHT = os.environ.get("ELASTIC_NIGHTLY") == "1"
EVERY = 10 if AT_NIGHT else 5
CASES = [(backend, manner, (100, 500, 1000)) for backend in endurance.SERVERS for manner in endurance.MANNERS]
# Over c10d there are as many old versions of the state after 40 rounds as are kept.
SHORT = [("c10d", "follows", (40, 80)), ("etcd", "leads", (10, 30))]


@pytest.mark.torch
@pytest.mark.timeout(1800 if AT_NIGHT else 300)
@pytest.mark.parametrize(("backend", "manner", "rounds"), CASES if AT_NIGHT else SHORT)
def test_keys_threads_and_descriptors_do_not_grow(backend, manner, rounds):
    seen = endurance.endure(backend, manner, rounds, EVERY, seed=7)
    assert len(seen) == len(rounds)
    assert seen[-1]["killed"] > rounds[-1] // EVERY // 2
    grown = [(row.what, row.unit) for row in endurance.rows(backend, manner, seen) if row.met is False]
    assert not grown, seen


def seen(number, **changes):
    return {
        "round": number,
        "killed": 3,
        "keys": 30,
        "bytes": 9000,
        "threads": 5,
        "descriptors": 20,
        "memory_kib": 50_000,
    } | changes


def test_what_has_grown_is_told():
    rows = endurance.rows("c10d", "leads", [seen(100), seen(500, keys=40), seen(1000, keys=35, threads=6)])
    told = {row.unit: (row.values["elastic"], row.target, row.met) for row in rows}
    assert told["keys"] == (35, "<= 34", False)
    assert told["threads"] == (6, "<= 6", True)
    assert told["agents"] == (3, "", None)
    assert "leases" not in told
    assert next(row.notes for row in rows if row.unit == "keys") == {
        "elastic": "30 after 100 rounds, 40 after 500 rounds"
    }
