"""The whole membership policy, as one pure function (`decide`). The function maps a node's view to the next step and
the reason for that step.

Any node can safely run the function at any time, because a node writes the state by compare-and-swap against the state
on which it based its decision. To limit the load on the store, only the leader runs it (see `election`). The table in
`design/rendezvous.md` shows the whole policy.

The module also decides whether the loss of a peer may have caused a failure (`is_certain`). This is a guess based on
the text of the failure messages. The guess affects only two things: whether a failure may be exempt from the restart
budget, and which failure is shown first."""

from __future__ import annotations

import heapq
import signal
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
    from collections.abc import Mapping

    from elastic_core.clock import Duration
    from elastic_core.errors import ProcessFailure
    from elastic_core.rendezvous.model import Entry, State
    from elastic_core.rendezvous.roster import Roster
    from elastic_core.rendezvous.settings import RendezvousSettings


@dataclass(frozen=True)
class Write:
    """Write `state` in place of the state on which the decision is based."""

    state: State
    reason: str


@dataclass(frozen=True)
class Wait:
    """Write nothing now. Decide again when something changes or, if `until` is not None, at that time.

    Args:
        joined: how many nodes are ready.
        wanted: how many nodes the round needs.
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
    """Return the next step and the reason for it.

    Args:
        enough_since: when the caller first saw that `min_nodes` were ready for the next round, on the same clock as
            `now`; None if too few are ready.
        settled: the time before which members without an entry are not considered lost, because the store may have lost
            entries in an outage.
    """
    if state.closed:
        return Wait(f"closed by {state.closed.by}: {state.closed.reason}")
    unwelcome = refused(state, _impostors(roster, state, settings, now))
    if unwelcome is not state:
        return Write(unwelcome, "two agents have the same name")
    reported = with_reports(roster, state)
    if reported is not state and reported.end is not None:
        return Write(reported, (reported.closed or reported.end).reason)
    if state.open:
        return _while_running(roster, state, settings, settled if now < settled else None)
    return _while_gathering(roster, state, settings, now, enough_since, settled)


def with_reports(roster: Roster, state: State) -> State:
    """Apply the reports of failures and departures in the nodes' entries, and return the resulting state."""
    for key, reported in ((seen.entry.key, seen.entry.reported) for seen in roster):
        if reported is not None and reported.round == state.round:
            state = state if reported.failure is None else failed(state, reported.round, reported.failure)
            state = left(state, key, reported.leaves) if reported.leaves else state
    return state


def enough(roster: Roster, state: State, settings: RendezvousSettings) -> bool:
    """Return whether no round is running and `min_nodes` are ready for the next one."""
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
    reason = f"{names} want{'s' if len(newcomers) == 1 else ''} to join"
    return Write(ended(state, Cause.JOINED, names, reason), reason)


def _why_lost(state: State, lost: list[str], roster: Roster, settings: RendezvousSettings) -> str:
    late = {seen.entry.key: seen.ended for seen in roster if seen.late}
    kinds = {
        "its agent has ended": [key for key in lost if late.get(key)],
        f"no heartbeat for {settings.failure_timeout:g} s": [key for key in lost if late.get(key) is False],
        "its entry has disappeared": [key for key in lost if key not in late],
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

    def waits_for(what: str, until: Instant, missing: tuple[str, ...] = names) -> Wait:
        reason = f"{len(ready)} nodes joined, waiting for {what}"
        return Wait(reason, until, len(ready), settings.max_nodes, missing)

    if len(ready) < settings.min_nodes:
        blamed = None if now < settled else _blamed(state, ready, missing, roster, settings)
        if blamed is not None and blamed.end is not None:  # users need to know before the next round forms
            return Write(blamed, blamed.end.reason)
        reason = f"{len(ready)} of {settings.min_nodes} nodes joined"
        return Wait(reason, None, len(ready), settings.min_nodes, names)
    since = now if enough_since is None else enough_since
    ahead = any(entry.after.number > state.round.number for entry in alive(roster, state))
    if ahead and now < (given_back := later(since, settings.failure_timeout)):
        return waits_for("the state that the store has lost", given_back)
    until = _until(ready, missing, state, settings, since)
    if until is not None and now < until:
        return waits_for(f"{', '.join(names)} to rejoin" if missing else "the last call", until)
    present = {seen.entry.key for seen in roster}
    unsettled = state.names(key for key in state.busy if key not in present) if now < settled else ()
    if unsettled:
        return waits_for(f"{', '.join(unsettled)} to rejoin", settled, unsettled)
    if until is None:
        reason = f"all {settings.max_nodes} nodes have joined" if len(ready) >= settings.max_nodes else ""
    else:
        reason = f"{', '.join(names)} did not rejoin in time" if missing else "the last call is over"
    return _form(ready, missing, roster, state, settings, reason)


def _until(
    ready: list[Entry], missing: list[Entry], state: State, settings: RendezvousSettings, since: Instant
) -> Instant | None:
    """Return the latest time at which to form a round of the nodes that are ready, or None to form one now. Without
    this wait, spares would take the places of members that still have to stop their workers, because spares are always
    ready first. A live member learns within a failure timeout that the round has ended."""
    full = len(ready) >= settings.max_nodes
    if missing:
        stopping: Duration = settings.failure_timeout + max(entry.stop_timeout for entry in missing)
        return later(since, stopping if full else max(stopping, settings.timeout.close.total_seconds()))
    known = any(state.seated(entry.key) for entry in ready)  # otherwise it is like a new job
    return None if full or known else later(since, settings.timeout.last_call.total_seconds())


def _impostors(roster: Roster, state: State, settings: RendezvousSettings, now: Instant) -> list[tuple[str, str]]:
    """Return the keys of the live agents whose name belongs to another live agent, each with a reason for users. An
    agent is returned only after two failure timeouts. By then, the loss of the other agent would have been noticed."""
    names = holders(roster, state)
    found = []
    for seen in roster:
        holder = seen.entry if seen.late else names[seen.entry.node]
        if holder is not seen.entry and now - seen.since > 2 * settings.failure_timeout:
            where = holder.address or holder.host
            found.append((seen.entry.key, f"the name {holder.node} is taken by a live agent at {where}"))
    return found


def _missing(roster: Roster, state: State) -> list[Entry]:
    """Return the live members of the last round that have not rejoined. They may still run workers. Drained members are
    included until they leave. Lost members are included if their heartbeats resume."""
    return [entry for entry in alive(roster, state) if state.seated(entry.key) and not is_ready(entry, state)]


def _form(
    ready: list[Entry],
    missing: list[Entry],
    roster: Roster,
    state: State,
    settings: RendezvousSettings,
    reason: str,
) -> Decision:
    """Form a round of the ready nodes. The last round's members get seats first, and then the oldest of the other
    nodes. The remaining nodes are spares. If the last round ended with an uncertain failure, first determine the cause.
    If a member is missing, the loss of that member was the cause, and no restart is used."""
    if state.end is not None and state.end.cause_unclear:
        state = _blamed(state, ready, missing, roster, settings) or counted_failure(state)
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
    reason = f"{apart} cannot be reached by the other nodes" if apart else reason or _who_is_back(state, ready)
    bounded = replace(state, min_nodes=settings.min_nodes, max_nodes=settings.max_nodes)
    return Write(formed(bounded, (entry.seat for entry in members), max_restarts, reason, announced), reason)


def _meeting(ready: list[Entry], least: int) -> list[Entry]:
    """Return nodes that can all reach each other. The function repeatedly removes the node with the most broken links.
    If fewer than `least` nodes would remain, return all nodes instead."""
    broken = _broken_links(ready)
    worst = [(-len(broken[entry.key]), -place, entry.key) for place, entry in enumerate(ready) if entry.key in broken]
    heapq.heapify(worst)
    out: set[str] = set()
    while worst:
        noted, place, key = heapq.heappop(worst)
        count = sum(other not in out for other in broken[key])
        if count == -noted:
            out.add(key)
        elif count:  # the node has fewer broken links than before, so another node may have more
            heapq.heappush(worst, (-count, place, key))
    return [entry for entry in ready if entry.key not in out] if len(ready) - len(out) >= least else ready


def _broken_links(entries: list[Entry]) -> dict[str, list[str]]:
    """Map each node with broken links to the nodes at the other ends of these links, by key. A key is listed twice if
    both nodes have reported the link."""
    here = {entry.key for entry in entries}
    found: dict[str, list[str]] = {}
    for key, other in ((entry.key, other) for entry in entries for other in entry.unreachable if other in here):
        found.setdefault(key, []).append(other)
        found.setdefault(other, []).append(key)
    return found


def _who_is_back(state: State, ready: list[Entry]) -> str:
    back = {entry.node for entry in ready}
    gone = tuple(name for name in state.names(state.seats.keys) if name not in back)
    return f"all members but {', '.join(gone)} have rejoined" if gone else "all members have rejoined"


def _blamed(
    state: State, ready: list[Entry], missing: list[Entry], roster: Roster, settings: RendezvousSettings
) -> State | None:
    """Return the state that attributes the uncertain failure to the missing members. Returns None if there is no such
    failure or no such member."""
    if state.end is None or not state.end.cause_unclear:
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


PHRASES = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "connection was closed",
    "broken pipe",
    "remote process exited",
    "remote process has terminated",
    "timed out waiting",
    "socket timeout",
    "nccl",
    "gloo",
    "recvvalue failed",
    "failed to recv",
    "store has been closed",
    "distnetworkerror",
    "diststoreerror",
)
"""Lower-case phrases that communication libraries use in messages about the loss of a peer."""


def is_certain(failures: Mapping[int, ProcessFailure]) -> bool:
    """Return whether the loss of a peer can be ruled out as the cause of at least one failure. The loss cannot be ruled
    out if a worker left an exit code but no message. It cannot be ruled out either if a worker aborted, because
    collectives abort when a peer is lost. The loss is ruled out if the agent killed the worker because the worker was
    hung."""
    return any(_by_itself(failure) for failure in failures.values() if failure.caused_by is None)


def _by_itself(failure: ProcessFailure) -> bool:
    if not failure.curable or failure.hung:
        return True
    if failure.exitcode < 0 and failure.exitcode != -signal.SIGABRT and not failure.error_file_data:
        return True
    words = " ".join([failure.message, *failure.stderr_tail]).lower()
    return bool(words.strip()) and not any(phrase in words for phrase in PHRASES)
