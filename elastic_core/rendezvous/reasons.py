"""Why a node does not come to the round that it wants, or leaves the one it is in: the errors, with their words.
Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from elastic_core.interfaces.handler import Outcome, Verdict
from elastic_core.rendezvous.participant import Standing, first_failures

if TYPE_CHECKING:
    from elastic_core.clock import Duration
    from elastic_core.rendezvous.settings import RendezvousSettings
    from elastic_core.rendezvous.state import State
    from elastic_core.rendezvous.view import View


def no_answer(view: View, seconds: Duration) -> RendezvousConnectionError:
    """The store did not answer within so many seconds; how it is out of reach, if that is known."""
    told = f": {type(view.fault).__name__}: {view.fault}" if view.fault else ""
    return view.outage or RendezvousConnectionError(
        f"expected the rendezvous store to answer within {seconds:g} s, found that it did not{told}"
    )


def no_place(state: State, stands: Standing, key: str, run_id: str, was_closed: bool) -> RendezvousError:
    """There will be no round for the node: it is drained, refused, or all is closed. `was_closed`: it was so when the
    node first looked."""
    if stands is Standing.DRAINED:
        return RendezvousGracefulExitError("somebody asked this node to leave (drain)")
    if stands is Standing.REFUSED:
        return RendezvousStateError(
            f"this node may not take part: {state.refusal(key)}; give every agent a name of its own with --node-id "
            "(with the backend static, a --node-rank of its own)"
        )
    return _closed(state, run_id, was_closed)


def _closed(state: State, run_id: str, was_closed: bool) -> RendezvousError:
    assert state.closed is not None
    told = f"the job {run_id!r} was closed by {state.closed.by}: {state.closed.reason}"
    if state.closed.succeeded and not was_closed:
        return RendezvousGracefulExitError(f"{told}; this node was not needed")
    advice = "; for a new job choose another --rdzv-id" if was_closed else ""
    error = RendezvousClosedError(told + advice)
    error.failures = {} if state.closed.succeeded else first_failures(state)
    return error


def too_few(settings: RendezvousSettings, seen: str) -> RendezvousTimeoutError:
    """The round did not form in time. `seen`: who was there."""
    return RendezvousTimeoutError(
        f"expected {_bounds(settings)} within {settings.timeout.join:g} s (join_timeout), found: "
        f"{seen or 'too few'}; start the missing ones, or allow more time with --rdzv-conf=join_timeout=SECONDS"
    )


def _bounds(settings: RendezvousSettings) -> str:
    if settings.min_nodes == settings.max_nodes:
        return f"{settings.min_nodes} nodes to join"
    return f"{settings.min_nodes} to {settings.max_nodes} nodes to join"


def fenced(seconds: Duration, window: Duration, outage: Exception | None) -> Verdict:
    """The node fences itself off: the store was out of reach for so many seconds."""
    answer = f"the last answer was: {outage}" if outage else "it does not answer at all"
    return Verdict(
        Outcome.FENCED,
        f"the rendezvous store was out of reach for {seconds:.1f} s; after {window:g} s without a beat the others hold "
        f"this node to be gone; {answer}",
    )
