"""A node's messages to users: why the node cannot join a round, why it leaves its round, and which nodes are missing.
All functions are pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.errors import (
    DrainedError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from elastic_core.interfaces.handler import Outcome, Verdict
from elastic_core.rendezvous.model import DRAINED, NO_ROUND, Cause, JoinStatus, first_failures, join_status
from elastic_core.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.clock import Duration
    from elastic_core.rendezvous.model import State
    from elastic_core.rendezvous.policy import Wait
    from elastic_core.rendezvous.roster import Roster
    from elastic_core.rendezvous.settings import RendezvousSettings

_MOST_NAMES = 8


def no_answer(outage: Exception | None, fault: Exception | None, seconds: Duration) -> RendezvousConnectionError:
    """Return the error for a store that did not answer. `outage` and `fault` are the known reasons."""
    if isinstance(outage, RendezvousConnectionError):
        return outage
    reason = f": {type(fault).__name__}: {fault}" if fault else ""
    return RendezvousConnectionError(f"the rendezvous store did not answer within {seconds:g} s{reason}")


def no_contact(
    outage: Exception | None, fault: Exception | None, settings: RendezvousSettings
) -> RendezvousConnectionError:
    """Return the error for a store that has never answered. For `outage` and `fault`, see `no_answer`."""
    seconds, option = settings.first_contact
    reason = str(outage or (f"{type(fault).__name__}: {fault}" if fault else ""))
    where = f" at {settings.endpoint}" if settings.endpoint not in reason else ""
    advice = "" if "endpoint" in reason else "; check --rdzv-endpoint, and that the store is running"
    return RendezvousConnectionError(
        f"no answer from the rendezvous store{where} within {seconds:g} s (--rdzv-conf={option})"
        f"{reason and ': '}{reason}{advice}"
    )


def no_place(
    state: State, status: JoinStatus, key: str, run_id: str, was_closed: bool, has_run: bool = False
) -> RendezvousError:
    """Return the error for a node that cannot join a round. `was_closed` states whether the job was already closed when
    the node asked for its first round. `has_run` states whether the node has been in a round."""
    if status is JoinStatus.DRAINED:
        return (DrainedError if has_run else RendezvousGracefulExitError)(DRAINED)
    if status is JoinStatus.REFUSED:
        return RendezvousStateError(
            f"this node is not allowed to take part: {state.refusal(key)}; give every agent a unique --node-id "
            "(or --node-rank, with the static backend)"
        )
    assert state.closed is not None
    reason = f"the job {run_id!r} was closed by {state.closed.by}: {state.closed.reason}"
    if state.closed.succeeded and not was_closed and not has_run:
        return RendezvousGracefulExitError(f"{reason}; this node was not needed")
    advice = "; for a new job, choose another --rdzv-id" if was_closed else ""
    if has_run and state.closed.succeeded:
        advice = "; this node's workers are not among those that succeeded"
    error = RendezvousClosedError(reason + advice)
    error.succeeded = state.closed.succeeded
    error.failures = {} if state.closed.succeeded else first_failures(state)
    return error


def too_few(settings: RendezvousSettings, seen: str) -> RendezvousTimeoutError:
    """Return the error for a round that did not form in time. `seen` describes the nodes that have joined."""
    least, most = settings.min_nodes, settings.max_nodes
    wanted = f"{least} nodes" if least == most else f"{least} to {most} nodes"
    return RendezvousTimeoutError(
        f"expected {wanted} to join within {settings.timeout.join.total_seconds():g} s ({settings.join_option}), "
        f"found: {seen or 'too few'}; start the missing nodes, or allow more time with "
        f"--rdzv-conf={settings.join_option}=SECONDS"
    )


def fenced(seconds: Duration, failure_timeout: Duration, outage: Exception | None) -> Verdict:
    """Return the verdict for a node that stops its workers after this many seconds without reaching the store."""
    answer = f"the last error was: {outage}" if outage else "the store does not answer"
    return Verdict(
        Outcome.FENCED,
        f"the rendezvous store was unreachable for {seconds:.1f} s; after {failure_timeout:g} s without a heartbeat, "
        f"nodes that can reach the store consider this node lost; {answer}",
    )


def progress(
    state: State | None, gathering: Wait | None, roster: Roster, settings: RendezvousSettings, key: str
) -> str:
    """Return a line for users about what this node is waiting for, or an empty string if that is not known."""
    if state is None:
        return f"connecting to the store at {settings.endpoint}" if settings.endpoint else "connecting to the store"
    if state.open and state.seated(key):
        return _work_left(state, roster)
    status = join_status(state, key, NO_ROUND, settings.max_nodes)
    if status is JoinStatus.SPARE:
        return f"round {state.round} is full ({counted(len(state.busy), 'node')}, --nnodes); this node is a spare"
    if status is JoinStatus.WAITING:
        return f"round {state.round} is running ({counted(len(state.busy), 'node')}); this node waits for the next"
    if gathering is None:
        return ""
    wanted = settings.min_nodes if gathering.joined < settings.min_nodes else settings.max_nodes
    text = f"{gathering.joined} of {wanted} nodes joined"
    if gathering.missing:
        return f"{text}, waiting for: {first_names(gathering.missing)}"
    if gathering.joined < settings.min_nodes and state.end is not None and state.end.cause is Cause.LOST:
        return f"{text}; {state.end.reason}"
    return f"{text}, {gathering.reason.split(', ', 1)[-1]}" if gathering.joined >= settings.min_nodes else text


def _work_left(state: State, roster: Roster) -> str:
    done = {seen.entry.key for seen in roster if seen.entry.done == state.round}
    busy = state.names(key for key in state.busy if key not in done)
    if not busy:
        return ""
    return f"{len(state.seats) - len(busy)} of {len(state.seats)} nodes are done; still working: {first_names(busy)}"


def first_names(names: Sequence[str]) -> str:
    """Return a string with the first eight names and the number of remaining names."""
    shown = ", ".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
