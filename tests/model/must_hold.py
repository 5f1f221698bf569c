"""What must hold of every state of a small world, and from one to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.rendezvous.settings import RendezvousSettings
    from elastic_core.rendezvous.state import State


class Violation(Exception):
    """A world that must not be."""


def must(holds: object, what: str) -> None:
    if not holds:
        raise Violation(what)


def check_state(state: State, settings: RendezvousSettings) -> None:
    keys = [seat.key for seat in state.seats]
    must(len(set(keys)) == len(keys), "a node has two ranks")
    must([state.rank(key) for key in keys] == list(range(len(keys))), "ranks are not dense")
    if state.round:
        must(settings.min_nodes <= len(keys) <= settings.max_nodes, "a round of too few or too many members")
    must(not (set(state.gone) & set(state.done)), "a node is gone and done")
    must({*state.gone, *state.done} <= set(keys), "a node is gone or done that was no member")
    must(not (set(keys) & {key for key, _ in state.absent}), "a member is absent")
    for what in (state.gone, state.done, state.draining, [key for key, _ in state.absent]):
        must(len(set(what)) == len(what), "a node is in a list twice")
    must(not state.open or not state.gone, "a round runs on though a member is gone")
    must(not (state.open and state.closed), "a round runs though the job is closed")
    must(0 <= state.restarts <= state.max_restarts, "more restarts than allowed")


def check_step(old: State, new: State, settings: RendezvousSettings) -> None:
    must(not old.closed, "something was written after the job was closed")
    must(old.round <= new.round <= old.round + 1, f"round {new.round} after round {old.round}")
    must(0 <= new.restarts - old.restarts <= 1, f"{new.restarts} restarts after {old.restarts}")
    must(set(old.refused) <= set(new.refused), "a refusal was forgotten")
    if new.restarts > old.restarts:
        must(old.open or (old.end and not old.end.counted), "a failure was counted twice")
    if new.round == old.round:
        must(new.seats == old.seats, f"the members of round {new.round} changed")
        must(old.open or not new.open, f"round {new.round} was taken up again")
        must(set(old.gone) <= set(new.gone), "a node came back into a round")
        must(set(old.done) <= set(new.done), "a node is not done any more")
        must(set(old.draining) <= set(new.draining), "a drain was forgotten")
    else:
        must(not old.open, f"round {new.round} formed while round {old.round} ran")
        must(new.open, f"round {new.round} is over before it began")
        must(not any(seat.key in old.draining for seat in new.seats), "a node that is drained was seated")
