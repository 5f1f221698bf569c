"""Invariants of every state of a small world, of every transition, and of every world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.rendezvous import model
from elastic_core.rendezvous.model import Cause

if TYPE_CHECKING:
    from small_world import Actor, Rules, World

    from elastic_core.rendezvous.model import State
    from elastic_core.rendezvous.settings import RendezvousSettings

WANTS, RUNS, DONE, STOPS, GOES, GONE, CRASHED = range(7)


class Violation(Exception):
    """A world that violates an invariant."""


def must(holds: object, what: str) -> None:
    if not holds:
        raise Violation(what)


def check_state(state: State, settings: RendezvousSettings) -> None:
    keys = list(state.seats.keys)
    must(len(keys) == len(state.seats), "a node has two ranks")
    must([state.rank(key) for key in keys] == list(range(len(keys))), "ranks are not dense")
    if state.round:
        must(settings.min_nodes <= len(keys) <= settings.max_nodes, "a round of too few or too many members")
    must(not (set(state.gone) & set(state.done)), "a node is gone and done")
    must({*state.gone, *state.done} <= set(keys), "a node is gone or done that was no member")
    for what in (state.gone, state.done, state.draining):
        must(len(set(what)) == len(what), "a node is in a list twice")
    must(not state.open or not state.gone, "a round continues although a member is gone")
    must(not (state.open and state.closed), "a round runs though the job is closed")
    must(0 <= state.restarts <= state.max_restarts, "more restarts than allowed")


def check_step(old: State, new: State) -> None:
    must(not old.closed, "something was written after the job was closed")
    must(new.round.number - old.round.number in (0, 1), f"round {new.round} after round {old.round}")
    must(0 <= new.restarts - old.restarts <= 1, f"{new.restarts} restarts after {old.restarts}")
    if new.restarts > old.restarts:
        must(old.open or (old.end and not old.end.counted), "a failure was counted twice")
    if new.round.number == old.round.number:
        must(new.round == old.round, f"another round {new.round}")
        must(new.seats == old.seats, f"the members of round {new.round} changed")
        must(old.open or not new.open, f"round {new.round} was taken up again")
        must(set(old.gone) <= set(new.gone), "a node came back into a round")
        must(set(old.done) <= set(new.done), "a node is not done any more")
        must(set(old.draining) <= set(new.draining), "a drain was forgotten")
        must(set(old.refused) <= set(new.refused), "a refusal was forgotten")
    else:
        must(not old.open, f"round {new.round} formed while round {old.round} ran")
        must(new.open, f"round {new.round} is over before it began")
        must(not any(seat.key in old.draining for seat in new.seats), "a node that is drained was seated")


def check_write(rules: Rules, world: World, old: State, new: State, writer: Actor | None) -> None:
    """Check a write of the state, in the world just before it."""
    check_state(new, rules.settings)
    if world.forgot and writer and writer.machine and writer.machine.state:
        given = model.recovered(writer.machine.state, old)
        if given is not old and given == new:
            must(not old.closed or new.closed, "a job that was closed is open again")
            return
    check_step(old, new)
    actors = {actor.key: actor for actor in world.actors}
    if new.round == old.round:
        _check_end(rules, world, old, new, actors)
    else:
        _check_round(rules, world, old, new, actors, writer)


def _check_end(rules: Rules, world: World, old: State, new: State, actors: dict[str, Actor]) -> None:
    done = {actor.key for actor in world.actors if actor.reported_done == old.round}
    if old.open and not new.open and not new.closed and new.end:
        blamed = {key for key in old.seats.keys if old.names([key])[0] in new.end.by.split(", ")}
        healthy = new.end.cause in (Cause.LOST, Cause.LEFT, Cause.DRAINED)
        must(not (healthy and blamed and blamed <= done), "healthy workers were stopped for a node that is done")
        if new.end.cause is Cause.LOST:
            for key in new.gone:
                must(
                    rightly_gone(rules, world, actors[key]),
                    f"{key} was called lost, and was heard within the failure timeout",
                )
    if new.closed and new.closed.succeeded:
        for key in old.seats.keys:
            must(key in done or key in old.done, f"closed with success, but {key} is not done")
    for key, _ in set(new.refused) - set(old.refused):
        others = [a for a in world.actors if a.name == actors[key].name and a.key != key and a.machine is not None]
        must(others, f"{key} was refused for good for a node that is dead")


def _check_round(
    rules: Rules, world: World, old: State, new: State, actors: dict[str, Actor], writer: Actor | None
) -> None:
    for key in new.seats.keys:
        actor = actors[key]
        announced = world.store.beats(key) is not None
        must(not announced or not actor.works_in, f"{key} was seated while its old workers run")
        dead = actor.machine is None and world.now - actor.heard > 3 * rules.failure_timeout
        known = writer is not None and world.now - writer.since >= 3 * rules.failure_timeout
        must(not (dead and known), f"{key} was seated, which has been dead for three failure timeouts")
        must(actor.phase != GONE, f"{key} was seated, which has left")
    for key in old.seats.keys:
        works = key in actors and 0 < actors[key].works_in.number <= old.round.number
        must(not works or rightly_gone(rules, world, actors[key]), f"round {new.round} formed while {key} still works")


def rightly_gone(rules: Rules, world: World, actor: Actor) -> bool:
    """Whether its peers may consider it lost: they could not hear from it for a failure timeout, or have not noticed
    yet that it is back, or it has ended, or the store has denied it."""
    return actor.machine is None or world.now - actor.heard >= rules.failure_timeout or world.now == actor.back


def check_rest(rules: Rules, world: World) -> None:
    """Check a world in which no node has anything to do until time passes."""
    check_groups(world)
    check_fences(rules, world)
    state = world.state
    if world.store.state is None or world.asleep:
        return
    for actor in world.actors:
        if actor.phase != RUNS or actor.frozen or actor.machine is None:
            continue
        if not actor.cut_off and actor.asked is None and actor.machine.connection.retry_at is None:
            runs = state.open and state.round == actor.works_in and state.seated(actor.key)
            must(runs, f"{actor.key} runs round {actor.works_in}, which does not run, and the store answers it")


def check_groups(world: World) -> None:
    """Check that members of the same round have the same list of members."""
    groups: dict[object, tuple[str, ...]] = {}
    for actor in world.actors:
        if actor.machine is None or actor.phase != RUNS:
            continue
        formed = actor.machine.membership.formed
        assert formed is not None
        members = tuple(formed.seats.keys)
        known = groups.setdefault(actor.machine.membership.round, members)
        must(known == members, f"two groups run round {actor.works_in}: {known} and {members}")


def check_fences(rules: Rules, world: World) -> None:
    """Check that workers of different rounds never run at the same time beyond the fencing bound: when a member has not
    reached the store for that long, it may run only if no other round runs."""
    live = [a for a in world.actors if a.acts and a.phase == RUNS]
    if len({actor.works_in for actor in live}) > 1:
        for actor in live:
            what = f"{actor.key} runs round {actor.works_in} while another round runs, and its fencing bound has passed"
            must(world.now - actor.reached < rules.bound, what)


def check_settled(rules: Rules, world: World) -> None:
    """Check a world that has been left alone until nothing changes any more."""
    state = world.state
    here = [actor for actor in world.actors if actor.machine is not None]
    if state.closed:
        must(not here, f"the job is closed, and {_names(here)} do not know")
        return
    must(not any(actor.phase in (STOPS, GOES) for actor in here), "a node never stops")
    done = {a.key for a in world.actors if a.reported_done == state.round}
    ending = state.open and bool(done or any(a.phase == DONE for a in here))
    members = [a for a in here if a.phase in (RUNS, DONE)]
    must(all(a.number == state.round and state.open for a in members), "a node is in a round that does not run")
    if ending:
        left = set(state.busy) - {a.key for a in members} - done
        must(not left, f"the round continues without {left}")
        return
    able = min(len(here), rules.settings.max_nodes)
    if not here:
        return
    if len(here) < rules.settings.min_nodes:
        must(not state.open, "too few are there, and a round runs")
        return
    must(state.open, "nothing bad happens any more, and yet no round forms")
    must(len(members) == len(state.busy) == able, f"{_names(here)} are there, and {_names(members)} are in the round")


def _names(actors: list[Actor]) -> str:
    return ", ".join(actor.key for actor in actors) or "nobody"
