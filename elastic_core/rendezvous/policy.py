"""The whole membership policy: one pure function from what is seen to what should follow, with its reason.

Any node may run it at any time. That is safe because the state is written by compare-and-swap, against the very state
that was decided about. To keep the store quiet one node runs it, the leader (see `election`).

The policy, in order:

- Closed: nothing follows.
- A round runs: end it when a member is lost; close the job when all its members are done; end it when a member is to be
  drained, or when nodes wait and there is room for them. Members that are done are noted, so that they never count as
  lost. Once the first is done, no new node is let in: the job is ending.
- No round runs: note members whose agents have ended. Form a round when `min_nodes` are ready, and all nodes we know of
  are back, or have had the time to come back. The round waits for a live member that stops its workers for as long as
  that may take, even if spares fill all places. A new job, whose nodes are not known yet, waits for the last call
  instead, or until `max_nodes` are ready. Nodes that cannot reach each other do not meet in a round, as long as enough
  others can.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_core.clock import LONG_AGO, Instant, later
from elastic_core.rendezvous.model import (
    Cause,
    closed,
    counted_failure,
    ended,
    failed,
    followed,
    formed,
    left,
    refused,
    succeeded,
)
from elastic_core.rendezvous.roster import alive, arranged, holders, is_ready, ordered, waiting

if TYPE_CHECKING:
    from elastic_core.clock import Duration
    from elastic_core.rendezvous.model import Entry, State
    from elastic_core.rendezvous.roster import Roster
    from elastic_core.rendezvous.settings import RendezvousSettings


@dataclass(frozen=True)
class Write:
    """Replace the state that was decided about with `state`."""

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
    settled: Instant = LONG_AGO,
) -> Decision:
    """What should follow.

    Args:
        enough_since: when the caller first saw that `min_nodes` were ready for the next round, on the clock of `now`;
            None if they are not (see `enough`).
        settled: the store was away and may have lost its entries: until then members without one are not lost.
    """
    if state.closed:
        return Wait(f"closed by {state.closed.by}: {state.closed.reason}")
    unwelcome = refused(state, _impostors(roster, state, settings, now))
    if unwelcome is not state:
        return Write(unwelcome, "two agents have one name")
    reported = with_reports(roster, state)
    if reported is not state and reported.end is not None:
        return Write(reported, (reported.closed or reported.end).reason)
    if state.open:
        return _while_running(roster, state, settings, settled if now < settled else None)
    return _while_gathering(roster, state, settings, now, enough_since, settled)


def with_reports(roster: Roster, state: State) -> State:
    """The state with the failures that nodes report in their entries, and without those that leave."""
    for key, reported in ((seen.entry.key, seen.entry.reported) for seen in roster):
        if reported is not None and reported.round == state.round:
            state = state if reported.failure is None else failed(state, reported.round, reported.failure)
            state = left(state, key, reported.leaves) if reported.leaves else state
    return state


def enough(roster: Roster, state: State, settings: RendezvousSettings) -> bool:
    """Whether `min_nodes` are ready for the next round."""
    return not state.open and len(waiting(roster, state)) >= settings.min_nodes


def _while_running(roster: Roster, state: State, settings: RendezvousSettings, returning: Instant | None) -> Decision:
    seen = {item.entry.key: item for item in roster}
    noted = succeeded(state, [key for key, it in seen.items() if it.entry.done == state.round], state.round)
    absent = [key for key in noted.busy if key not in seen]
    late = [key for key in noted.busy if key in seen and seen[key].late]
    lost = late if returning is not None else [*late, *absent]
    if lost:
        reason = _why_lost(state, lost, roster, settings)
        return Write(ended(noted, Cause.LOST, ", ".join(state.names(lost)), reason, tuple(lost)), reason)
    if not noted.busy:
        by = state.names(noted.done[-1:]) or ("the last node",)
        return Write(closed(noted, by[0], "every worker succeeded", succeeded=True), "every worker succeeded")
    draining = set(state.draining)
    leaving = state.names(key for key in noted.busy if key in draining)
    if leaving:
        reason = f"{', '.join(leaving)} {'is' if len(leaving) == 1 else 'are'} drained"
        return Write(ended(noted, Cause.DRAINED, ", ".join(leaving), reason), reason)
    if noted is not state:
        return Write(noted, f"{len(noted.done)} of {len(state.seats)} nodes are done")
    busy = set(state.busy)
    newcomers = [entry for entry in waiting(roster, state) if busy.isdisjoint(entry.unreachable)]
    if noted.done or not newcomers or len(busy) >= settings.max_nodes:
        until = returning if absent else None
        return Wait("the round runs", until, len(busy), len(busy))
    names = ", ".join(entry.node for entry in newcomers)
    reason = f"{names} want{'s' if len(newcomers) == 1 else ''} to take part"
    return Write(ended(state, Cause.JOINED, names, reason), reason)


def _why_lost(state: State, lost: list[str], roster: Roster, settings: RendezvousSettings) -> str:
    late = {seen.entry.key: seen.ended for seen in roster if seen.late}
    kinds = {
        "its agent has ended": [key for key in lost if late.get(key)],
        f"no beat for {settings.failure_timeout:g} s": [key for key in lost if late.get(key) is False],
        "left without a word": [key for key in lost if key not in late],
    }
    return "; ".join(f"lost {', '.join(state.names(keys))}: {why}" for why, keys in kinds.items() if keys)


def _while_gathering(
    roster: Roster,
    state: State,
    settings: RendezvousSettings,
    now: Instant,
    enough_since: Instant | None,
    settled: Instant,
) -> Decision:
    over = [seen.entry.key for seen in roster if seen.ended and seen.entry.key in state.busy]
    if over:
        by, reason = ", ".join(state.names(over)), _why_lost(state, over, roster, settings)
        return Write(followed(ended(state, Cause.LOST, by, reason, tuple(over)), Cause.LOST, by, reason), reason)
    ready = waiting(roster, state)
    missing = _missing(roster, state)
    names = tuple(entry.node for entry in missing)
    if len(ready) < settings.min_nodes:
        blamed = None if now < settled else _blamed(state, ready, missing, roster, settings)
        if blamed is not None and blamed.end is not None:  # people need to know before the next round forms, if it does
            return Write(blamed, blamed.end.reason)
        reason = f"{len(ready)} of {settings.min_nodes} nodes joined"
        return Wait(reason, None, len(ready), settings.min_nodes, names)
    since = now if enough_since is None else enough_since
    ahead = any(entry.after.number > state.round.number for entry in alive(roster, state))
    if ahead and now < (given_back := later(since, settings.failure_timeout)):
        reason = f"{len(ready)} nodes joined, waiting for the state that the store has lost"
        return Wait(reason, given_back, len(ready), settings.max_nodes, names)
    until = _until(ready, missing, state, settings, since)
    if until is not None and now < until:
        waits_for = "the last call" if not missing else f"{', '.join(names)} to come back"
        return Wait(f"{len(ready)} nodes joined, waiting for {waits_for}", until, len(ready), settings.max_nodes, names)
    if now < settled and (unsettled := _without_entry(roster, state)):
        reason = f"{len(ready)} nodes joined, waiting for {', '.join(state.names(unsettled))} to come back"
        return Wait(reason, settled, len(ready), settings.max_nodes, state.names(unsettled))
    if until is None:
        full = len(ready) >= settings.max_nodes
        return _form(
            ready, missing, roster, state, settings, f"all {settings.max_nodes} nodes are there" if full else ""
        )
    late = "the last call is over" if not missing else f"{', '.join(names)} did not come back in time"
    return _form(ready, missing, roster, state, settings, late)


def _until(
    ready: list[Entry], missing: list[Entry], state: State, settings: RendezvousSettings, since: Instant
) -> Instant | None:
    """When to form a round with those that are ready, at the latest; None for at once. Spares are always ready first:
    without this they would take the places of members that only stop their workers. Such members live, so they learn of
    the end of the round within a failure timeout."""
    full = len(ready) >= settings.max_nodes
    if missing:
        stopping: Duration = settings.failure_timeout + max(entry.stop_timeout for entry in missing)
        return later(since, stopping if full else max(stopping, settings.timeout.close.total_seconds()))
    known = any(state.seated(entry.key) for entry in ready)  # else no member of the last round is left: a new gathering
    return None if (full and not missing) or known else later(since, settings.timeout.last_call.total_seconds())


def _without_entry(roster: Roster, state: State) -> list[str]:
    """Members of the last round that had not gone, and have no entry."""
    present = {seen.entry.key for seen in roster}
    return [key for key in state.busy if key not in present]


def _impostors(roster: Roster, state: State, settings: RendezvousSettings, now: Instant) -> list[tuple[str, str]]:
    """Live agents with the name of another one, with the reason. If the other one were gone, it would be late by now,
    and its lease would have ended even if it was granted anew meanwhile."""
    names = holders(roster, state)
    found = []
    for seen in roster:
        holder = seen.entry if seen.late else names[seen.entry.node]
        if holder is not seen.entry and now - seen.since > 2 * settings.failure_timeout:
            where = holder.address or holder.host
            found.append((seen.entry.key, f"the name {holder.node} is taken by a live agent at {where}"))
    return found


def _missing(roster: Roster, state: State) -> list[Entry]:
    """Members of the last round that live and are not back yet: their workers may still run. These include a drained
    member until it says that it goes, and a member that was called lost but beats again."""
    return [entry for entry in alive(roster, state) if state.seated(entry.key) and not is_ready(entry, state)]


def _form(
    ready: list[Entry],
    missing: list[Entry],
    roster: Roster,
    state: State,
    settings: RendezvousSettings,
    reason: str,
) -> Decision:
    """A round of the nodes that are ready: members of the last one first, then older nodes first; the rest are
    spares."""
    state = _judged(state, ready, missing, roster, settings)
    if state.closed:
        return Write(state, state.closed.reason)
    veterans_first = sorted(ready, key=lambda entry: not state.seated(entry.key))
    meeting = _meeting(veterans_first, settings.min_nodes)
    meets = {entry.key for entry in meeting}
    chosen = {entry.key for entry in meeting[: settings.max_nodes]}
    before = list(state.seats.keys)
    members = ordered([entry for entry in ready if entry.key in chosen], before)
    members = arranged(members, before, settings.rank_policy)
    max_restarts = max(entry.max_restarts for entry in members)
    announced = {seen.entry.key for seen in roster}
    apart = ", ".join(entry.node for entry in ready if entry.key not in meets)
    reason = f"{apart} cannot be reached by the others" if apart else reason or _who_is_back(state, ready)
    bounded = replace(state, min_nodes=settings.min_nodes, max_nodes=settings.max_nodes)
    return Write(formed(bounded, (entry.seat for entry in members), max_restarts, reason, announced), reason)


def _meeting(ready: list[Entry], least: int) -> list[Entry]:
    """Those of them that can reach each other: the node with the most broken links is removed, of several the last,
    until no broken link is left. All of them if that leaves fewer than `least`."""
    broken = _broken_links(ready)
    worst = [(-len(broken[entry.key]), -place, entry.key) for place, entry in enumerate(ready) if entry.key in broken]
    heapq.heapify(worst)
    out: set[str] = set()
    while worst:
        noted, place, key = heapq.heappop(worst)
        count = sum(other not in out for other in broken[key])
        if count == -noted:
            out.add(key)
        elif count:  # fewer than when it was noted: others may have more
            heapq.heappush(worst, (-count, place, key))
    return [entry for entry in ready if entry.key not in out] if len(ready) - len(out) >= least else ready


def _broken_links(entries: list[Entry]) -> dict[str, list[str]]:
    """For each node with broken links, the nodes at their other ends; twice if both ends have reported."""
    here = {entry.key for entry in entries}
    found: dict[str, list[str]] = {}
    for key, other in ((entry.key, other) for entry in entries for other in entry.unreachable if other in here):
        found.setdefault(key, []).append(other)
        found.setdefault(other, []).append(key)
    return found


def _who_is_back(state: State, ready: list[Entry]) -> str:
    back = {entry.node for entry in ready}
    gone = tuple(name for name in state.names(state.seats.keys) if name not in back)
    return f"every node is back but {', '.join(gone)}" if gone else "every node known is back"


def _judged(
    state: State, ready: list[Entry], missing: list[Entry], roster: Roster, settings: RendezvousSettings
) -> State:
    """The state after judging an uncertain failure: if a member is gone, its loss was the cause, and that costs no
    restart. `max_restarts` is that of the round in which it happened."""
    if state.end is None or not state.end.awaits_judgement:
        return state
    return _blamed(state, ready, missing, roster, settings) or counted_failure(state)


def _blamed(
    state: State, ready: list[Entry], missing: list[Entry], roster: Roster, settings: RendezvousSettings
) -> State | None:
    """The state in which the uncertain failure has followed from members that are gone; None if there are none, or no
    such failure."""
    if state.end is None or not state.end.awaits_judgement:
        return None
    here = {entry.key for entry in (*ready, *(entry for entry in missing if entry.key not in state.gone))}
    out = [key for key in state.seats.keys if key not in here]
    if not out:
        return None
    known = set(state.gone)
    lost = [key for key in out if key not in known]
    if not lost:
        names = ", ".join(state.names(out))
        return followed(state, Cause.LEFT, names, f"{names} left")
    reason = _why_lost(state, lost, roster, settings)
    return followed(state, Cause.LOST, ", ".join(state.names(lost)), reason)
