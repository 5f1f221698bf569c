"""Chooses a joining node's next move, as a pure function of the document that the node last read. Between decisions, a
node remembers only the time at which the last call began. Lost replies, failed writes and outages therefore need no
special handling: the node reads the document and decides again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_etcd_legacy import steps
from elastic_etcd_legacy.table import Status

if TYPE_CHECKING:
    from elastic_core.plugin import Instant
    from elastic_etcd_legacy.document import DocumentView, KeepAlive, Rendezvous
    from elastic_etcd_legacy.steps import Bounds, Step


@dataclass(frozen=True)
class Attempt:
    """Try to write this step."""

    step: Step
    reason: str


@dataclass(frozen=True)
class Wait:
    """Wait for the keys to change, but only until `until` (None: no limit)."""

    reason: str
    until: Instant | None = None


@dataclass(frozen=True)
class Done:
    """The round is final, and this node is in it. `host` has the address of the workers' store."""

    version: int
    rank: int
    world_size: int
    host: KeepAlive


@dataclass(frozen=True)
class Closed:
    """No further round will form."""


Move = Attempt | Wait | Done | Closed


def decide(view: DocumentView, token: str, bounds: Bounds, call_ends: Instant | None, now: Instant) -> Move:
    """Return the next move of the node `token`.

    Args:
        call_ends: when the last call ends. It is required if this node makes the last call, and ignored otherwise.
    """
    document = view.document
    if document is None:
        return Attempt(steps.create(token), "no rendezvous exists")
    if document.status is Status.CLOSED:
        return Closed()
    if document.status is Status.SETUP:
        return _in_setup(document, token)
    if document.status is Status.JOINABLE:
        return _in_joinable(document, token, bounds, call_ends, now)
    if document.status is Status.FROZEN:
        return _in_frozen(document, token)
    return _in_final(view, document, token)


def _in_setup(document: Rendezvous, token: str) -> Move:
    if document.creator == token:
        return Attempt(steps.open_(document), "this node created it")
    return Wait("another node is setting up the rendezvous")


def _in_joinable(document: Rendezvous, token: str, bounds: Bounds, call_ends: Instant | None, now: Instant) -> Move:
    joined = len(document.participants)
    if token not in document.participants:
        if joined >= bounds.most:
            return Wait("the rendezvous is full but still joinable, so the nodes' bounds must differ")
        return Attempt(steps.join(document, token, bounds), f"{joined} of {bounds.most} nodes have joined")
    if steps.caller(document, bounds) != token:
        return Wait(f"{joined} of at least {bounds.least} nodes have joined")
    if call_ends is not None and now >= call_ends:
        return Attempt(steps.end_call(document), "the last call is over")
    return Wait(f"last call: {joined} of {bounds.most} nodes have joined", call_ends)


def _in_frozen(document: Rendezvous, token: str) -> Move:
    if token not in document.participants:
        return Wait("a round without this node is about to become final")
    if token not in document.confirmed:
        return Attempt(steps.confirm(document, token), "all participants have joined")
    return Wait(f"{len(document.confirmed)} of {len(document.participants)} participants have confirmed")


def _in_final(view: DocumentView, document: Rendezvous, token: str) -> Move:
    if view.lost:
        # Members that have not returned from `next_rendezvous` yet also break the round, so that they do not start in a
        # round that is broken.
        return Attempt(steps.break_(document), f"ranks without a keep-alive: {view.lost}")
    if token in document.participants:
        return Done(view.version, document.participants.index(token), len(document.participants), view.alive[0])
    if token not in document.waiting:
        return Attempt(steps.announce(document, token), "a round is running")
    return Wait("a round is running, and this node is on its waiting list")


def makes_last_call(view: DocumentView, token: str, bounds: Bounds) -> bool:
    """Return whether this node makes the last call."""
    document = view.document
    return document is not None and document.status is Status.JOINABLE and steps.caller(document, bounds) == token


def nodes_waiting(view: DocumentView, version: int, bounds: Bounds) -> int:
    """Return the number of nodes that want a new round, as seen by a member of round `version` (0: by a node that is in
    no round).

    The result is 1 if the round has lost a member or its document no longer exists, so that its members form a new
    round. Nodes beyond the maximum are not counted.
    """
    document = view.document
    if document is not None and document.status is Status.CLOSED:
        return 0
    intact = document is not None and document.status is Status.FINAL and not view.lost
    if document is None or (version and (not intact or view.version != version)):
        return 1 if version else 0
    free = bounds.most - len(document.participants)
    return len(document.waiting) if intact and free > 0 else 0
