"""Handlers while a round runs: what they report to each other, and what ends the round."""

from __future__ import annotations

import pytest
from elastic_testing import Background, eventually
from handler_job import LONG, failure

from elastic_core.errors import RendezvousClosedError, RendezvousConnectionError
from elastic_core.interfaces.handler import Outcome
from elastic_core.rendezvous.driver import Patience

pytestmark = pytest.mark.integration


def test_rounds_with_same_number_share_no_store(job):
    """Agents that know of no round start the job again, while the round stores still have their keys."""
    before, again = job(2, 2), job(2, 2)
    again.store = before.store
    before.form("ab")["a"].store.set("key", "of the lost round")
    found = again.form("ab")
    assert found["a"].formed.number == 1
    found["b"].store.set("other", "of this round")
    assert found["a"].store.check(["other"])
    assert not found["a"].store.check(["key"])


def test_restarts_are_counted_for_the_job(job):
    one = job(1, 1)
    handler = one.node("a", max_restarts=1)
    handler.next_rendezvous()
    handler.report_failure(failure())
    assert handler.next_rendezvous().formed.restart_count == 1
    handler.report_failure(failure())
    verdict = eventually(handler.verdict)
    assert (verdict.outcome, verdict.succeeded, verdict.by) == (Outcome.CLOSED, False, "a")
    with pytest.raises(RendezvousClosedError, match="the only restart has been used") as caught:
        handler.next_rendezvous()
    assert "another --rdzv-id" not in str(caught.value)
    assert list(caught.value.failures) == [0]


def test_leaving_does_not_wait_for_a_hung_store(job):
    """The store hangs for a minute."""
    one = job(1, 1)
    handler = one.node("a")
    handler.next_rendezvous()
    one.backends["a"].hold.clear()
    assert Background(lambda: handler.leave("received SIGTERM", 0.3)).result(LONG) is False
    assert not one.backends["a"].hold.is_set()


def test_num_nodes_waiting_counts_as_torch_does(job):
    one = job(1, 1)
    one.form("a")
    assert one.handlers["a"].num_nodes_waiting() == 0
    one.bounds = (1, 2)
    other = one.node("b")
    assert other.num_nodes_waiting() == 0
    looks = one.backends["b"].calls["roster"]
    assert other.num_nodes_waiting() == 0
    assert one.backends["b"].calls["roster"] > looks


def test_closing_is_known_to_all_when_it_returns(job):
    one = job(2, 2)
    one.form("ab")
    assert not one.handlers["b"].is_closed()
    one.handlers["a"].set_closed()
    assert one.handlers["b"].is_closed()
    one.backends["b"].reachable = False
    assert one.handlers["b"].is_closed()  # once closed, always closed
    fresh = one.node("c")
    assert fresh.is_closed()


def test_closing_in_an_outage_raises_and_takes_effect_later(job):
    one = job(1, 1, patience=Patience(answer=0.5))
    one.form("a")
    one.backends["a"].reachable = False
    for call in [Background(one.handlers["a"].set_closed), Background(one.handlers["a"].is_closed)]:
        with pytest.raises(RendezvousConnectionError):
            call.result()
    one.backends["a"].reachable = True
    eventually(lambda: one.state.closed)
