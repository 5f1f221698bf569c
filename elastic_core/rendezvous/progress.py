"""What to tell people who wait for a round: how many nodes are there, and who is missing, as far as it is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.rendezvous.participant import Standing, standing

if TYPE_CHECKING:
    from elastic_core.rendezvous.decide import Wait
    from elastic_core.rendezvous.roster import Roster
    from elastic_core.rendezvous.settings import RendezvousSettings
    from elastic_core.rendezvous.state import State

_MOST_NAMES = 8


def progress_text(
    state: State | None, gathering: Wait | None, roster: Roster, settings: RendezvousSettings, key: str
) -> str:
    """One line; empty when nothing is known."""
    if state is None:
        return ""
    if state.open and any(seat.key == key for seat in state.surviving):
        return _work_left(state, roster)
    stands = standing(state, key, 0, settings.max_nodes)
    if stands is Standing.SPARE:
        return f"round {state.round} is full with {len(state.surviving)} nodes; this one is a spare"
    if stands is Standing.WAITING:
        return f"round {state.round} runs with {len(state.surviving)} nodes; this one waits for the next"
    if gathering is None:
        return ""
    wanted = settings.min_nodes if gathering.joined < settings.min_nodes else settings.max_nodes
    text = f"{gathering.joined} of {wanted} nodes joined"
    if gathering.missing:
        text += f", missing: {few(gathering.missing)}"
    elif gathering.joined >= settings.min_nodes:
        text += f", {gathering.reason.split(', ', 1)[-1]}"
    return text


def _work_left(state: State, roster: Roster) -> str:
    """For a member of a round that runs."""
    done = {seen.entry.key for seen in roster if seen.entry.done == state.round} | set(state.done)
    busy = tuple(seat.member.node for seat in state.surviving if seat.key not in done)
    return (
        f"{len(state.seats) - len(busy)} of {len(state.seats)} nodes are done, still at work: {few(busy)}"
        if busy
        else ""
    )


def few(names: tuple[str, ...]) -> str:
    """The names, but not hundreds of them."""
    shown = ", ".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
