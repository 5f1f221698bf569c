"""The fake handler keeps the promises of `interfaces.handler.RoundHandler`."""

from __future__ import annotations

import pytest
from agent_fakes import FakeRounds, round_info

from elastic_core.errors import RendezvousTimeoutError
from elastic_core.interfaces.handler import Outcome, RoundHandler, Verdict

ENDED = Verdict(Outcome.RESTART, "node5 has come")


def test_rounds_come_in_the_order_of_the_script():
    second = round_info(5, [("trainer", 2), ("reader", 1)], rank=1, restart_count=3, reason="all are back")

    def refuse():
        raise RendezvousTimeoutError("too few")

    handler: RoundHandler = FakeRounds([lambda: None, second, ValueError("no"), refuse])
    assert handler.next_rendezvous().formed == round_info(1).formed
    assert handler.next_rendezvous() is second
    with pytest.raises(ValueError, match="no"):
        handler.next_rendezvous()
    with pytest.raises(RendezvousTimeoutError):
        handler.next_rendezvous()
    third = handler.next_rendezvous()
    assert (third.rank, third.world_size, third.formed.number, third.formed.restart_count) == (1, 2, 6, 3)
    assert third.formed.members == second.formed.members
    assert third.store is not second.store


def test_a_verdict_stands_until_the_next_round():
    handler, told = FakeRounds(), []
    handler.subscribe(lambda: told.append(handler.verdict()))
    handler.next_rendezvous()
    handler.give(ENDED)
    assert told == [ENDED]
    assert not handler.is_closed()
    handler.next_rendezvous()
    assert handler.verdict() is None
    handler.give(Verdict(Outcome.CLOSED, "done", succeeded=True))
    assert handler.is_closed()


def test_calls_are_kept_and_answered_by_the_script():
    handler = FakeRounds(on_failure=lambda own: own.give(ENDED), on_success=lambda own: own.give(ENDED), can_tell=False)
    handler.report_failure({})
    assert handler.verdict() is ENDED
    handler.report_success()
    assert handler.leave("drained", 2.0) is False
    handler.set_closed()
    assert (handler.num_nodes_waiting(), handler.polled, handler.use_agent_store) == (0, False, False)
    assert [call[0] for call in handler.calls] == [
        "report_failure",
        "report_success",
        "leave",
        "set_closed",
        "num_nodes_waiting",
    ]
    assert handler.named("leave") == [("drained", 2.0)]
    assert (handler.get_backend(), handler.get_run_id(), handler.progress(), handler.ask_again()) == (
        "fake",
        "job",
        "",
        None,
    )


def test_shutdown_releases_what_blocks():
    handler = FakeRounds()
    assert not handler.released.is_set()
    assert handler.shutdown()
    assert handler.released.is_set()
