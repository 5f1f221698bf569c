"""What one node that wants a round does next, as a pure function of what it sees. Nothing is remembered from one
decision to the next but when the last call began, so that a lost answer, a failed write or an outage needs no care:
look again, decide again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_etcd_legacy import steps
from elastic_etcd_legacy.table import Status

if TYPE_CHECKING:
    from elastic_core.plugin import Instant
    from elastic_etcd_legacy.document import DocumentView, Rendezvous
    from elastic_etcd_legacy.steps import Bounds, Step


@dataclass(frozen=True)
class Attempt:
    """Try this step."""

    step: Step
    reason: str


@dataclass(frozen=True)
class Wait:
    """Wait for news, or until then (None: for news alone)."""

    reason: str
    until: Instant | None = None


@dataclass(frozen=True)
class Done:
    """The round is final, and this node is in it."""

    version: int
    rank: int
    world_size: int


@dataclass(frozen=True)
class Closed:
    """No further round will form."""


Move = Attempt | Wait | Done | Closed


def decide(view: DocumentView, token: str, bounds: Bounds, call_ends: Instant | None, now: Instant) -> Move:
    """The next move of the node `token`.

    Args:
        call_ends: when the last call ends, if this node makes it and has begun; it must not be None then.
    """
    document = view.document
    if document is None:
        return Attempt(steps.create(None, token), "there is no rendezvous")
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
        return Attempt(steps.open_(document, token), "this node created it")
    return Wait("another node sets the rendezvous up")


def _in_joinable(document: Rendezvous, token: str, bounds: Bounds, call_ends: Instant | None, now: Instant) -> Move:
    joined = len(document.participants)
    if token not in document.participants:
        if joined >= bounds.most:
            return Wait("the rendezvous is full though it can be joined: the nodes were told different bounds")
        return Attempt(steps.join(document, token, bounds), f"{joined} of {bounds.most} nodes have joined")
    if steps.caller(document, bounds) != token:
        return Wait(f"{joined} of at least {bounds.least} nodes have joined")
    if call_ends is not None and now >= call_ends:
        return Attempt(steps.end_call(document, token, bounds), "the last call is over")
    return Wait(f"last call: {joined} of {bounds.most} nodes have joined", call_ends)


def _in_frozen(document: Rendezvous, token: str) -> Move:
    if token not in document.participants:
        return Wait("a round without this node is about to be final")
    if token not in document.confirmed:
        return Attempt(steps.confirm(document, token), "all participants are there")
    return Wait(f"{len(document.confirmed)} of {len(document.participants)} participants have confirmed")


def _in_final(view: DocumentView, document: Rendezvous, token: str) -> Move:
    if view.lost:
        # Also by a member that has not returned with this round yet: it need not begin what is broken already.
        return Attempt(steps.break_(document), f"ranks without keep-alive: {view.lost}")
    if token in document.participants:
        return Done(view.version, document.participants.index(token), len(document.participants))
    if token not in document.waiting:
        return Attempt(steps.announce(document, token), "a round runs")
    return Wait("a round runs; its members were told that this node waits")


def begins_call(view: DocumentView, token: str, bounds: Bounds) -> bool:
    """Whether this node makes the last call."""
    document = view.document
    return document is not None and document.status is Status.JOINABLE and steps.caller(document, bounds) == token


def nodes_waiting(view: DocumentView, version: int, bounds: Bounds) -> int:
    """How many nodes want a new round, for a member of round `version` (0: of none).

    A round that has lost a member, or whose document is gone, counts as one more, so that its members begin a new one;
    nodes that no round has room for do not count.
    """
    document = view.document
    if document is not None and document.status is Status.CLOSED:
        return 0
    stands = document is not None and document.status is Status.FINAL and not view.lost
    if document is None or (version and (not stands or view.version != version)):
        return 1 if version else 0
    room = bounds.most - len(document.participants)
    return document.num_workers_waiting if stands and room > 0 else 0
