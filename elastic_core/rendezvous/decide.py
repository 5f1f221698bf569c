"""The whole membership policy: one pure function from what is seen to what should follow, with its reason.

Any node may run it at any time: what makes it safe is that the state is written by compare-and-swap, against the very
state that was decided about. To keep the store quiet one node runs it, the leader (see `leading`).

The policy, in order:

- Closed: nothing follows.
- A round runs: close it when all its members are done; end it when a member is lost, or when nodes wait and there is
  room for them. Members that are done are never lost, and once the first is done nobody is let in: the job is ending.
- No round runs: form one when `min_nodes` are ready, and everybody we know of is back, or has had the time to come
  back (less time where spares fill all places). A new job, whose nodes are not known yet, waits for the last call
  instead, or until `max_nodes` are ready.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.rendezvous.ranks import ordered
from elastic_core.rendezvous.roster import alive, holders, is_ready, waiting
from elastic_core.rendezvous.seats import Seat
from elastic_core.rendezvous.state import Cause, closed, counted_failure, ended, formed, refused

if TYPE_CHECKING:
    from elastic_core.clock import Instant
    from elastic_core.rendezvous.entry import Entry
    from elastic_core.rendezvous.roster import Roster
    from elastic_core.rendezvous.settings import RendezvousSettings
    from elastic_core.rendezvous.state import State


@dataclass(frozen=True)
class Write:
    """Put `state` in the place of the one decided about."""

    state: State
    reason: str


@dataclass(frozen=True)
class Wait:
    """Nothing to write now; decide again at `until` (None: when something changes).

    Args:
        joined: nodes that are ready.
        wanted: how many it needs.
        missing: names of known nodes that are not ready.
    """

    reason: str
    until: Instant | None = None
    joined: int = 0
    wanted: int = 0
    missing: tuple[str, ...] = ()


Decision = Write | Wait


def decide(
    roster: Roster,
    state: State,
    settings: RendezvousSettings,
    now: Instant,
    enough_since: Instant | None,
    returning_until: Instant | None = None,
) -> Decision:
    """What should follow.

    Args:
        enough_since: when the caller first saw that `min_nodes` were ready for the next round, on the clock of `now`;
            None if they are not (see `enough`).
        returning_until: the store was away and may have lost its entries: until then members without one are not lost.
    """
    if state.closed:
        return Wait(f"closed by {state.closed.by}: {state.closed.reason}")
    unwelcome = refused(state, _impostors(roster, state, settings, now))
    if unwelcome is not state:
        return Write(unwelcome, "two agents have one name")
    if state.open:
        returning = returning_until if returning_until is not None and now < returning_until else None
        return _while_running(roster, state, settings, returning)
    return _while_gathering(roster, state, settings, now, enough_since)


def enough(roster: Roster, state: State, settings: RendezvousSettings) -> bool:
    """Whether `min_nodes` are ready for the next round."""
    return not state.open and len(waiting(roster, state)) >= settings.min_nodes


def _while_running(roster: Roster, state: State, settings: RendezvousSettings, returning: Instant | None) -> Decision:
    seen = {item.entry.key: item for item in roster}
    done = [s for s in state.surviving if s.key in seen and seen[s.key].entry.done == state.round]
    finished = {seat.key for seat in done}
    busy = [s for s in state.surviving if s.key not in finished]
    silent = [s for s in busy if s.key in seen and seen[s.key].late]
    absent = [s for s in busy if s.key not in seen]
    lost = [s for s in busy if (seen[s.key].late if s.key in seen else returning is None)]
    if lost:
        reason = _why_lost(silent, absent if returning is None else [], settings)
        names = _nodes(lost)
        return Write(ended(state, Cause.LOST, names, reason, tuple(s.key for s in lost)), reason)
    if len(done) == len(state.surviving):
        by = done[-1].member.node if done else "the last node"
        return Write(closed(state, by, "every worker succeeded", succeeded=True), "every worker succeeded")
    newcomers = waiting(roster, state)
    if finished or state.done or not newcomers or len(state.surviving) >= settings.max_nodes:
        until = returning if absent else None
        return Wait("the round runs", until, len(state.surviving), len(state.surviving))
    names = ", ".join(entry.node for entry in newcomers)
    reason = f"{names} want{'s' if len(newcomers) == 1 else ''} to take part"
    return Write(ended(state, Cause.JOINED, names, reason), reason)


def _why_lost(silent: list[Seat], absent: list[Seat], settings: RendezvousSettings) -> str:
    told = []
    if silent:
        told.append(f"lost {_nodes(silent)}: no beat for {settings.window:g} s")
    if absent:
        told.append(f"lost {_nodes(absent)}: left without a word")
    return "; ".join(told)


def _nodes(seats: list[Seat]) -> str:
    return ", ".join(seat.member.node for seat in seats)


def _while_gathering(
    roster: Roster, state: State, settings: RendezvousSettings, now: Instant, enough_since: Instant | None
) -> Decision:
    ready = waiting(roster, state)
    missing = _missing(roster, state)
    names = tuple(entry.node for entry in missing)
    if len(ready) < settings.min_nodes:
        reason = f"{len(ready)} of {settings.min_nodes} nodes joined"
        return Wait(reason, None, len(ready), settings.min_nodes, names)
    full = len(ready) >= settings.max_nodes
    if full and not missing:
        return _form(ready, missing, roster, state, settings, f"all {settings.max_nodes} nodes are there")
    known = any(state.seated(entry.key) for entry in ready)  # else nobody of the last round is left: a new gathering
    if known and not missing:
        return _form(ready, missing, roster, state, settings, "every node known is back")
    since = now if enough_since is None else enough_since
    # Spares are always ready first; without this they would take the places of members that only stop their workers.
    until = later(since, settings.timeout.close if missing and not full else settings.timeout.last_call)
    if now >= until:
        late = "the last call is over" if not missing else f"{', '.join(names)} did not come back in time"
        return _form(ready, missing, roster, state, settings, late)
    waits_for = "the last call" if not missing else f"{', '.join(names)} to come back"
    reason = f"{len(ready)} nodes joined, waiting for {waits_for}"
    return Wait(reason, until, len(ready), settings.max_nodes, names)


def _impostors(roster: Roster, state: State, settings: RendezvousSettings, now: Instant) -> list[tuple[str, str]]:
    """Live agents of a name that another has, with the reason. By now the other one would be late if it were gone."""
    names = holders(roster, state)
    patience = settings.window + 2 * settings.keep_alive_interval
    found = []
    for seen in roster:
        holder = seen.entry if seen.late else names[seen.entry.node]
        if holder is not seen.entry and now - seen.since > patience:
            where = holder.address or holder.host
            found.append((seen.entry.key, f"the name {holder.node} is taken by a live agent at {where}"))
    return found


def _missing(roster: Roster, state: State) -> list[Entry]:
    """Members of the last round that live and are not back yet. Who was asked to leave will not come."""
    return [
        entry
        for entry in alive(roster, state)
        if state.seated(entry.key)
        and entry.key not in state.gone
        and entry.key not in state.done
        and entry.key not in state.draining
        and not is_ready(entry, state)
    ]


def _form(
    ready: list[Entry],
    missing: list[Entry],
    roster: Roster,
    state: State,
    settings: RendezvousSettings,
    reason: str,
) -> Decision:
    """A round of those that are ready, members of the last one first, then the older ones; the rest are spares."""
    state = _judged(state, ready, missing)
    if state.closed:
        return Write(state, state.closed.reason)
    before = [seat.key for seat in state.seats]
    veterans_first = sorted(ready, key=lambda entry: not state.seated(entry.key))
    chosen = {entry.key for entry in veterans_first[: settings.max_nodes]}
    members = ordered([entry for entry in ready if entry.key in chosen], before)
    seats = tuple(Seat(entry.key, entry.member, entry.port) for entry in members)
    max_restarts = max(entry.max_restarts for entry in members)
    announced = {seen.entry.key for seen in roster}
    bounded = replace(state, min_nodes=settings.min_nodes, max_nodes=settings.max_nodes)
    return Write(formed(bounded, seats, max_restarts, reason, announced), reason)


def _judged(state: State, ready: list[Entry], missing: list[Entry]) -> State:
    """The state after judging a failure that nobody was certain about: if a member is gone, its loss was the cause, and
    that costs no restart. `max_restarts` is that of the round in which it happened."""
    if state.end is None or state.end.cause is not Cause.FAILURE or state.end.counted:
        return state
    here = {entry.key for entry in (*ready, *missing)}
    if any(seat.key not in here for seat in state.seats):
        return state
    return counted_failure(state, state.max_restarts)
