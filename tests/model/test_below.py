"""The search below the node: faults between any two operations of a store."""

from __future__ import annotations

import pytest
from below import EVENTS, Below

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
LOSSES = ("fail", "restart", "crash", "forget", "older", "older")
MOVES = ("fail", "crash", "restart", "leave", "leave", "freeze")
BREAKS = ("fail", "crash", "restart", "answer lost", "never done", "done late", "freeze")


@pytest.mark.parametrize("machines", [2, 3])
@pytest.mark.parametrize("events", [EVENTS, LOSSES, MOVES, BREAKS], ids=["all", "losses", "moves", "breaks"])
def test_live_nodes_end_up_in_one_round(machines, events):
    for seed in range(8):
        Below(seed, machines, events).run(calm=4.0)


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


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("machines", [2, 3])
@pytest.mark.parametrize("events", [EVENTS, LOSSES, MOVES, BREAKS], ids=["all", "losses", "moves", "breaks"])
def test_live_nodes_share_one_round_in_many_worlds(machines, events):
    for seed in range(100, 700):
        Below(seed, machines, events, most=7).run(calm=4.0)
