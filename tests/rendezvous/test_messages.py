"""Messages of a node: why it cannot join a round, and which nodes are missing."""

from __future__ import annotations

import pytest

from elastic_core.errors import ExitCode, RendezvousConnectionError
from elastic_core.rendezvous.messages import no_answer, no_contact, progress, too_few
from elastic_core.rendezvous.model import Cause, State, ended
from elastic_core.rendezvous.policy import Wait
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout


def test_known_outage_is_the_reason_for_no_answer():
    outage = RendezvousConnectionError("connection refused")
    assert no_answer(outage, ValueError("odd"), 5.0) is outage


@pytest.mark.parametrize(
    ("outage", "fault", "expected"),
    [
        (
            "connection refused",
            None,
            " at store:1 within 7 s (--rdzv-conf=connect_timeout): connection refused; check",
        ),
        (
            "store:1 is down; correct the endpoint",
            None,
            " within 7 s (--rdzv-conf=connect_timeout): store:1 is down",
        ),
        (None, KeyError("dsn"), ": KeyError: 'dsn'; check --rdzv-endpoint, and that the store is running"),
        (None, None, "connect_timeout); check --rdzv-endpoint"),
    ],
)
def test_no_contact_error_names_store_and_remedy_once(outage, fault, expected):
    settings = RendezvousSettings("job", 1, 2, RendezvousTimeout(), connect_timeout=7.0, endpoint="store:1")
    error = no_contact(outage and RendezvousConnectionError(outage), fault, settings)
    assert error.exit_code == ExitCode.STORE_UNREACHABLE
    assert str(error).startswith("no answer from the rendezvous store")
    assert expected in str(error)
    assert [str(error).count(words) for words in ("store:1", "endpoint")] == [1, 1]


@pytest.fixture
def text(build):
    def make(state, gathering=None, roster=(), key="a", **bounds):
        return progress(state, gathering, roster, build.settings(**{"min_nodes": 2, **bounds}), key)

    return make


@pytest.mark.parametrize(
    ("gathering", "expected"),
    [
        (Wait("1 of 2 nodes joined", None, 1, 2), "1 of 2 nodes joined"),
        (Wait("1 of 2 nodes joined", None, 1, 2, ("b", "c")), "1 of 2 nodes joined, waiting for: b, c"),
        (
            Wait("2 nodes joined, waiting for the last call", None, 2, 4),
            "2 of 4 nodes joined, waiting for the last call",
        ),
    ],
)
def test_progress_of_a_gathering_round(text, gathering, expected):
    assert text(State(), gathering) == expected


def test_progress_names_a_lost_node_without_an_entry(text, build):
    state = ended(build.state("ab"), Cause.LOST, "b", "lost b: no heartbeat for 5 s")
    assert text(state, Wait("1 of 2 nodes joined", None, 1, 2)) == "1 of 2 nodes joined; lost b: no heartbeat for 5 s"
    assert text(state, Wait("2 nodes joined, all is well", None, 2, 4)) == "2 of 4 nodes joined, all is well"


def test_progress_of_nodes_without_a_seat(text, build):
    assert text(build.state("ab"), key="x") == "round 1 is running (2 nodes); this node waits for the next"
    assert text(build.state("ab"), key="x", max_nodes=2) == "round 1 is full (2 nodes, --nnodes); this node is a spare"


def test_progress_names_members_that_still_work(text, build):
    roster = (build.seen("a", done=1), build.seen("b"), build.seen("c"))
    old = Wait("1 of 3 nodes joined", None, 1, 3, ("b", "c"))
    for most in (3, 4):
        shown = text(build.state("abc"), old, roster, max_nodes=most)
        assert shown == "1 of 3 nodes are done; still working: b, c"


def test_join_timeout_without_known_nodes_reports_too_few():
    error = too_few(RendezvousSettings("job", 2, 2, RendezvousTimeout()), "")
    assert "expected 2 nodes to join" in str(error)
    assert "found: too few; start the missing nodes" in str(error)
