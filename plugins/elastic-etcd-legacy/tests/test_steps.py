"""Every state with every event: what the table allows happens, and nothing else."""

from __future__ import annotations

import itertools

import pytest
from elastic_etcd_legacy import steps
from elastic_etcd_legacy.document import Rendezvous
from elastic_etcd_legacy.steps import Bounds, IllegalStep
from elastic_etcd_legacy.table import BY_CAUSE, TRANSITIONS, Effect, Event, Status

TWO_TO_THREE = Bounds(2, 3)

# A document of each state, in which "me" may do all that the state allows at all.
DOCUMENTS = {
    None: None,
    Status.SETUP: Rendezvous(Status.SETUP, creator="me"),
    Status.JOINABLE: Rendezvous(Status.JOINABLE),
    Status.FROZEN: Rendezvous(Status.FROZEN, participants=("me", "b", "c")),
    Status.FINAL: Rendezvous(Status.FINAL, participants=("a", "b"), confirmed=("a", "b")),
    Status.CLOSED: Rendezvous(Status.CLOSED),
}
SPECIAL = {
    (Status.JOINABLE, Event.CALL): Rendezvous(Status.JOINABLE, participants=("a",)),
    (Status.JOINABLE, Event.FILL): Rendezvous(Status.JOINABLE, participants=("a", "b")),
    (Status.JOINABLE, Event.END_CALL): Rendezvous(Status.JOINABLE, participants=("a", "me")),
    (Status.JOINABLE, Event.ABANDON): Rendezvous(Status.JOINABLE, participants=("a", "me")),
    (Status.FROZEN, Event.COMPLETE): Rendezvous(Status.FROZEN, participants=("a", "me"), confirmed=("a",)),
    (Status.FINAL, Event.WITHDRAW): Rendezvous(Status.FINAL, participants=("a",), waiting=("me", "d")),
}
ACTIONS = {
    Event.CREATE: lambda document: steps.create(document, "me"),
    Event.OPEN: lambda document: steps.open_(document, "me"),
    Event.JOIN: lambda document: steps.join(document, "me", TWO_TO_THREE),
    Event.CALL: lambda document: steps.join(document, "me", TWO_TO_THREE),
    Event.FILL: lambda document: steps.join(document, "me", TWO_TO_THREE),
    Event.END_CALL: lambda document: steps.end_call(document, "me", TWO_TO_THREE),
    Event.CONFIRM: lambda document: steps.confirm(document, "me"),
    Event.COMPLETE: lambda document: steps.confirm(document, "me"),
    Event.ANNOUNCE: lambda document: steps.announce(document, "me"),
    Event.WITHDRAW: lambda document: steps.give_up(document, "me"),
    Event.ABANDON: lambda document: steps.give_up(document, "me"),
    Event.BREAK: steps.break_,
    Event.CLOSE: steps.close,
}
BY_NODES = [row for row in TRANSITIONS if row.event is not Event.EXPIRE]  # etcd does that one


def status(document):
    return None if document is None else document.status


@pytest.mark.parametrize("row", BY_NODES, ids=lambda row: f"{row.before}-{row.event.value}")
def test_each_transition_happens(row):
    before = SPECIAL.get((row.before, row.event), DOCUMENTS[row.before])
    step = ACTIONS[row.event](before)
    assert step.transition is row
    assert status(step.after) is row.after


OUTCOMES = {
    Event.CREATE: {Event.CREATE},
    Event.OPEN: {Event.OPEN},
    Event.JOIN: {Event.JOIN, Event.CALL, Event.FILL},
    Event.END_CALL: {Event.END_CALL},
    Event.CONFIRM: {Event.CONFIRM, Event.COMPLETE},
    Event.ANNOUNCE: {Event.ANNOUNCE},
    Event.BREAK: {Event.BREAK},
}
"""What an action may turn out to be."""

NOT_ALLOWED = [
    (before, action)
    for before, (action, outcomes) in itertools.product(DOCUMENTS, OUTCOMES.items())
    if not any((before, event) in BY_CAUSE for event in outcomes)
]


@pytest.mark.parametrize(("before", "action"), NOT_ALLOWED, ids=str)
def test_nothing_else_happens(before, action):
    with pytest.raises(IllegalStep, match=f"found {action.value}"):
        ACTIONS[action](DOCUMENTS[before])


def test_what_is_closed_stays_closed():
    assert steps.close(DOCUMENTS[Status.CLOSED]) is None


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=lambda document: str(status(document)))
def test_who_is_nowhere_has_nothing_to_give_up(document):
    assert steps.give_up(document, "stranger") is None


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (lambda: steps.open_(DOCUMENTS[Status.SETUP], "other"), "only who created it"),
        (lambda: steps.join(Rendezvous(Status.JOINABLE, participants=("me",)), "me", TWO_TO_THREE), "joined already"),
        (lambda: steps.join(Rendezvous(Status.JOINABLE, participants=tuple("abc")), "me", TWO_TO_THREE), "room for 3"),
        (lambda: steps.end_call(Rendezvous(Status.JOINABLE, participants=("me",)), "me", TWO_TO_THREE), "last call"),
        (
            lambda: steps.end_call(Rendezvous(Status.JOINABLE, participants=("me", "b")), "me", TWO_TO_THREE),
            "last call",
        ),
        (lambda: steps.confirm(Rendezvous(Status.FROZEN, participants=("a",)), "me"), "does not take part"),
        (lambda: steps.confirm(Rendezvous(Status.FROZEN, "", ("me", "b"), ("me",)), "me"), "confirmed already"),
        (lambda: steps.announce(Rendezvous(Status.FINAL, "", ("me",)), "me"), "in it already"),
        (lambda: steps.announce(Rendezvous(Status.FINAL, "", ("a",), (), ("me",)), "me"), "in it already"),
    ],
)
def test_conditions_are_kept(step, told):
    with pytest.raises(IllegalStep, match=told):
        step()


def test_the_table_has_one_row_for_an_event_in_a_state():
    assert len(BY_CAUSE) == len(TRANSITIONS)


def test_every_written_document_has_one_lease():
    leases = {Effect.LEASE_SETUP, Effect.LEASE_CALLER, Effect.LEASE_FROZEN, Effect.LEASE_RUN, Effect.KEEP_LEASE}
    for row in BY_NODES:
        assert len(leases & set(row.effects)) == (row.after is not None), row


def test_every_state_is_left_and_reached():
    assert {row.after for row in TRANSITIONS} == {row.before for row in TRANSITIONS} == {None, *Status}


def test_who_opened_it_takes_it_away_while_nobody_has_joined():
    opened = steps.open_(DOCUMENTS[Status.SETUP], "me").after
    assert steps.give_up(opened, "me").after is None
    joined = steps.join(opened, "other", TWO_TO_THREE).after
    assert steps.give_up(joined, "me") is None


def test_closing_keeps_nobody():
    assert steps.close(DOCUMENTS[Status.FINAL]).after == Rendezvous(Status.CLOSED)
