"""The search below the node: faults between any two operations of a store."""

from __future__ import annotations

import threading

import pytest
from below import ENDPOINT, EVENTS, Below, Machine
from must_hold import Violation

from elastic_core.rendezvous import roster_log, store_backend
from elastic_core.rendezvous.versions import Keys

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
    "seeds", [range(30), pytest.param(range(30, 500), marks=[pytest.mark.nightly, pytest.mark.timeout(3000)])]
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


def test_state_that_was_written_twice_with_one_version_number_reaches_all_nodes():
    """The store reverts, a node writes, and the store reverts again, so that another node writes the same version."""
    Below(592, 2, LOSSES, most=7, moves=False).run(quiet=80.0, calm=4.0)


# -- directed searches: each begins in a situation that random events reach too rarely


def entry_arrives_late(world):
    """An agent dies while it announces itself. The store receives its entry only long after readers have voided the
    slot."""
    world.let("crash", world.machines[2])
    world.until(lambda: all(machine.running for machine in world.machines[:2]))
    world.let("restart", world.machines[2])
    dies, store = world.machines[2], world.places[ENDPOINT].store
    world.until(lambda: world.about_to(dies, "/e/"))
    announces = world.about_to(dies, "/e/")
    slot, announces.fault = announces.next[1], "done late"
    world.until(lambda: world.late)
    world.let("crash", dies)
    world.until(lambda: store.check([slot]))
    enough = world.clock.now() + 3 * world.settings.failure_timeout
    world.until(lambda: world.clock.now() > enough)


def host_dies_after_a_move(world):
    """The endpoint's store leads to a store that has moved, and the host of that store dies."""
    world.until(lambda: all(machine.running for machine in world.machines))
    world.let("leave", world.machines[0])
    world.until(lambda: not world.machines[0].acts)
    world.let("restart", world.machines[0])
    world.until(lambda: world.machines[0].running)
    world.let("crash", next(machine for machine in world.machines if machine.hosts))


def heir_dies_before_it_serves(world):
    """The host leaves, and a node that starts the next store dies before that store answers."""
    world.until(lambda: all(machine.running for machine in world.machines))
    world.let("leave", world.machines[0])
    world.until(lambda: any(heir.starts_a_store for heir in world.machines))
    dies_at = world.clock.now() + world.random.choice([0.0, 0.3, 0.7])
    world.until(lambda: world.clock.now() >= dies_at)
    world.let("crash", world.random.choice([heir for heir in world.machines if heir.starts_a_store]))


def late_entry(seed):
    Below(seed, 3, ["freeze", "freeze", "fail"], most=3).run(begins=entry_arrives_late)


def dead_forward(seed):
    Below(seed, 3, ["freeze", "fail", "restart", "answer lost"], most=3).run(begins=host_dies_after_a_move)


def next_heir(seed):
    Below(seed, 3, most=0, serving=(1.0,)).run(begins=heir_dies_before_it_serves, store_survives=True)


@pytest.mark.parametrize("search", [late_entry, dead_forward, next_heir])
@pytest.mark.parametrize(
    "seeds", [range(10), pytest.param(range(10, 400), marks=[pytest.mark.nightly, pytest.mark.timeout(3000)])]
)
def test_live_nodes_share_a_round_after_rare_faults(search, seeds):
    for seed in seeds:
        search(seed)


def test_dead_agent_whose_entry_overwrites_a_void_slot_is_found(monkeypatch):
    def put(store, key, value):
        if "/e/" not in key or value == roster_log.VOID:
            return create(store, key, value)
        store.set(key, value)
        return value

    create = roster_log.create
    monkeypatch.setattr(roster_log, "create", put)
    with pytest.raises(Violation, match="long after its end"):
        for seed in range(50):
            late_entry(seed)


def test_nodes_that_follow_a_forward_to_a_dead_store_forever_are_found(monkeypatch):
    monkeypatch.setattr(store_backend, "POINTER_PATIENCE", float("inf"))
    with pytest.raises(Violation, match="not in one round after all"):
        for seed in range(50):
            dead_forward(seed)


def test_forward_that_is_written_before_the_new_store_answers_is_found(monkeypatch):
    serve = Machine.serve

    def forwards_and_serves(machine):
        old = machine.place.store
        old.compare_set(Keys("job", old.get(Keys("job").id).decode()).moved, "", machine.free_address())
        return serve(machine)

    monkeypatch.setattr(Machine, "serve", forwards_and_serves)
    with pytest.raises(Violation, match="not in one round after all"):
        for seed in range(50):
            next_heir(seed)
