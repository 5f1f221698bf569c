"""The search below the node: faults between any two operations of a store."""

from __future__ import annotations

import threading

import pytest
from below import EVENTS, Below
from must_hold import Violation

from elastic_core.rendezvous import store_backend

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
LOSSES = (*EVENTS, "older", "older", "older")
MOVES = ("fail", "crash", "restart", "leave", "leave", "freeze", "answer lost")
BREAKS = ("fail", "crash", "restart", "answer lost", "never done", "done late", "freeze", "leave")
IMMEDIATE = (0.0,)
VARIED = (0.0, 1.0, 4.0)  # seconds until a store serves; its host gives up after 3 s


MANY = pytest.param(range(100, 700), 7, marks=[pytest.mark.nightly, pytest.mark.timeout(3000)])


@pytest.mark.parametrize("machines", [2, 3])
@pytest.mark.parametrize(
    ("events", "serving", "moves"),
    [(EVENTS, IMMEDIATE, True), (LOSSES, IMMEDIATE, False), (MOVES, VARIED, True), (BREAKS, VARIED, True)],
    ids=["all", "losses", "moves", "breaks"],
)
@pytest.mark.parametrize(("seeds", "most"), [(range(8), 6), MANY], ids=["few", "many"])
def test_live_nodes_end_up_in_one_round(machines, events, serving, moves, seeds, most):
    for seed in seeds:
        # a node checks every 64 heartbeats whether readers still reach its entry
        Below(seed, machines, events, most, moves, serving=serving).run(quiet=60.0 if moves else 80.0, calm=4.0)


@pytest.mark.parametrize(
    ("machines", "seeds"),
    [
        (2, range(50)),
        (3, range(20)),
        pytest.param(2, range(50, 400), marks=pytest.mark.nightly),
        pytest.param(3, range(20, 150), marks=pytest.mark.nightly),
    ],
)
def test_leaving_host_hands_its_store_over(machines, seeds):
    """If nothing fails and another node has joined, some node takes over the store, whatever it is doing then."""
    for seed in seeds:
        world = Below(seed, machines, ["leave"], most=1)
        world.run(calm=4.0, quiet=10.0)
        assert all(machine.handed_over is not False for machine in world.machines), seed


SLOW = (1.0, 4.0)


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 500), marks=[pytest.mark.nightly, pytest.mark.timeout(3000)])]
)
@pytest.mark.parametrize("machines", [2, 3])
def test_host_may_give_up_while_another_node_takes_over(machines, seeds):
    worlds = [Below(seed, machines, ["leave"], most=1, serving=SLOW) for seed in seeds]
    for world in worlds:
        world.run(calm=4.0, quiet=20.0)
    assert {machine.handed_over for world in worlds for machine in world.machines} >= {True, False}


def test_world_that_ends_leaves_no_thread_behind():
    """A thread that ended later would be charged to the next test."""
    before = set(threading.enumerate())
    for seed in range(8):
        Below(seed, 3, ["leave"], most=1).run(calm=4.0, quiet=10.0)
        assert set(threading.enumerate()) <= before, seed


def test_second_heir_that_overwrites_the_record_of_the_first_is_found(monkeypatch):
    def put(store, key, value):
        store.set(key, value)
        return value

    create = store_backend.create
    monkeypatch.setattr(store_backend, "create", lambda store, key, value: (
        put(store, key, value) if key.endswith("/moved") else create(store, key, value)
    ))  # fmt: skip
    with pytest.raises(Violation, match="leaves a store that stays"):
        for seed in range(50):
            Below(seed, 2, ["leave"], most=1, serving=SLOW).run(calm=4.0, quiet=20.0)


def test_record_that_is_mistaken_for_a_missing_key_is_found(monkeypatch):
    """A node took over a store that stayed, because the record of that was an empty value."""
    monkeypatch.setattr("elastic_core.rendezvous.store_backend.STAYS", "")
    with pytest.raises(Violation, match="leaves a store that stays"):
        for seed in range(100):
            Below(seed, 3, ["leave"], most=1, serving=SLOW).run(calm=4.0, quiet=20.0)


@pytest.mark.parametrize(
    "seeds", [range(50), pytest.param(range(50, 700), marks=[pytest.mark.nightly, pytest.mark.timeout(3000)])]
)
def test_nodes_of_one_machine_share_a_round_after_the_loss_of_each_host(seeds):
    """A store that had moved and was started again at its last address once had no pointer at the endpoint."""
    for seed in seeds:
        Below(seed, 3, ["crash host", "leave host", "restart"], most=4, together=True).run(calm=4.0)
