"""Handlers that cannot join a round report the reason."""

from __future__ import annotations

import time

import pytest
from elastic_testing import Background, eventually
from handler_job import FailingStores

from elastic_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
)
from elastic_core.interfaces.handler import Outcome
from elastic_core.rendezvous.model import drained, refused

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("succeeded", [True, False])
def test_joining_a_closed_job_raises(job, succeeded):
    one = job()
    one.node("a").close("it is over", succeeded)
    with pytest.raises(RendezvousClosedError, match=r"closed by a: it is over.*another --rdzv-id"):
        one.node("b").next_rendezvous()


def test_closing_ends_a_waiting_join(job):
    one = job(2, 2)
    call = Background(one.node("a").next_rendezvous)
    eventually(lambda: one.memory.entries)
    one.node("b").set_closed()
    with pytest.raises(RendezvousClosedError, match="closed by b: it was closed on request"):
        call.result()
    eventually(lambda: not one.memory.entries)


def test_spare_of_a_succeeded_job_exits_gracefully(job):
    one = job(1, 1)
    one.form("a")
    spare = Background(one.node("b").next_rendezvous)
    eventually(lambda: len(one.memory.entries) == 2)
    one.handlers["a"].report_success()
    message = "^the job 'job' was closed by a: every worker succeeded; this node was not needed$"
    with pytest.raises(RendezvousGracefulExitError, match=message):
        spare.result()
    verdict = eventually(one.handlers["a"].verdict)
    assert (verdict.outcome, verdict.succeeded) == (Outcome.CLOSED, True)


def test_drain_ends_a_waiting_join_and_a_running_round(job):
    one = job(1, 1)
    one.form("a")
    spare = Background(one.node("b").next_rendezvous)
    eventually(lambda: len(one.memory.entries) == 2)
    one.write(lambda state: drained(drained(state, one.key("b")), one.key("a")))
    with pytest.raises(RendezvousGracefulExitError, match="drain"):
        spare.result()
    assert eventually(one.handlers["a"].verdict).outcome is Outcome.DRAINED


def test_refused_join_raises_with_reason_and_remedy(job):
    one = job(2, 2)
    call = Background(one.node("a").next_rendezvous)
    eventually(lambda: one.memory.entries)
    one.write(lambda state: refused(state, [(one.key("a"), "the name is taken")]))
    with pytest.raises(RendezvousStateError, match=r"the name is taken; .*--node-id"):
        call.result()


def test_unreachable_store_ends_the_join_at_its_timeout(job):
    one = job(join=0.4)
    handler = one.node("a")
    one.backends["a"].reachable = False
    with pytest.raises(RendezvousConnectionError):
        handler.next_rendezvous()
    eventually(lambda: "made the store unreachable" in handler.progress())
    begun = time.monotonic()
    with pytest.raises(RendezvousConnectionError, match="made the store unreachable"):
        Background(handler.next_rendezvous).result()
    assert time.monotonic() - begun > 0.3


def test_hung_store_ends_the_join_at_its_timeout(job):
    """The store would answer after a minute."""
    one = job(join=0.4)
    handler = one.node("a")
    one.backends["a"].hold.clear()
    with pytest.raises(RendezvousConnectionError, match=r"within 0.4 s"):
        Background(handler.next_rendezvous).result()


def test_failed_round_store_withdraws_the_member(job):
    one = job(1, 1)
    handler = one.node("a", stores=FailingStores())
    with pytest.raises(OSError, match="no store today"):
        handler.next_rendezvous()
    eventually(lambda: not one.memory.entries)
    info = Background(handler.next_rendezvous).result()
    assert info.bootstrap_store_info.master_port == 1002
    assert info.formed.number == 2
