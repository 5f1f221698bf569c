"""Handlers with real threads form rounds over a memory backend that can be made unreachable."""

from __future__ import annotations

from datetime import timedelta
from importlib.util import find_spec

import pytest
from elastic_testing import Background, FakeClock, MemoryBackend, SharedMemory, eventually
from handler_job import LONG, failure

from elastic_core.builtin import MemoryStore
from elastic_core.errors import ConfigurationError, RendezvousTimeoutError
from elastic_core.interfaces.handler import Outcome
from elastic_core.rendezvous import DynamicRendezvousHandler, RendezvousTimeout

pytestmark = pytest.mark.integration


def test_each_round_has_an_empty_store(job):
    one = job(1, 1)
    first = one.form("a")["a"]
    first.store.set("key", "value")
    one.handlers["a"].report_failure(failure())
    second = one.form("a")["a"]
    assert second.formed.number == 2
    assert not second.store.check(["key"])
    assert second.formed.restart_count == 1


def test_from_backend_takes_torchs_arguments():
    backend, seconds = MemoryBackend(SharedMemory()), timedelta(seconds=2)
    has_torch = find_spec("torch") is not None
    timeout = RendezvousTimeout(seconds, seconds, seconds, seconds)
    handler = DynamicRendezvousHandler.from_backend(
        "job", MemoryStore(), backend, 1, 2, "127.0.0.1", timeout, timedelta(seconds=3), 4
    )
    settings = handler.settings
    assert (settings.run_id, settings.min_nodes, settings.max_nodes) == ("job", 1, 2)
    assert (settings.timeout.join, settings.timeout.last_call) == (seconds, seconds)
    assert (settings.keep_alive_interval, settings.keep_alive_max_attempt) == (3.0, 4)
    assert (handler.get_backend(), handler.get_run_id(), handler.use_agent_store) == ("memory", "job", has_torch)
    assert handler.shutdown()


def test_introduced_role_and_workers_reach_members():
    backend = MemoryBackend(SharedMemory())
    handler = DynamicRendezvousHandler.from_backend("job", MemoryStore(), backend, 1, 1)
    handler.introduce("trainer", 4, 2, 30.0)
    try:
        (member,) = handler.next_rendezvous().formed.members
        assert (member.role, member.local_world_size) == ("trainer", 4)
        with pytest.raises(ConfigurationError, match="expected a role of"):
            handler.introduce("a\nb", 4, 2, 30.0)
    finally:
        handler.shutdown()


def test_join_timeout_names_missing_nodes(job):
    clock = FakeClock()
    handler = job(2, 4, join=1.5, clock=clock).node("a")
    joining = Background(handler.next_rendezvous)
    eventually(lambda: "1 of 2 nodes joined" in handler.progress())
    clock.advance(1.5)
    assert not handler.is_closed()  # wakes the node, so that it reads the clock
    with pytest.raises(
        RendezvousTimeoutError, match=r"2 to 4 nodes .* 1.5 s .*found: 1 of 2 nodes joined.*join_timeout"
    ):
        joining.result()


def test_joining_again_after_a_timeout_works(job):
    one = job(2, 2, join=0.3)
    handler = one.node("a")
    assert not handler.is_closed()  # the store has answered once
    for _ in range(3):
        with pytest.raises(RendezvousTimeoutError):
            handler.next_rendezvous()
    eventually(lambda: not one.memory.entries)
    one.timeout.join = timedelta(seconds=LONG)
    assert len(one.form("ab")) == 2


def test_rejoining_without_report_ends_the_round(job):
    """Agents written for torch's handlers do this."""
    one = job(2, 2)
    infos = one.form("ab")
    again = Background(one.handlers["a"].next_rendezvous)
    verdict = eventually(one.handlers["b"].verdict)
    assert (verdict.outcome, verdict.reason, verdict.failed) == (Outcome.RESTART, "a wants a new round", False)
    assert one.form("b")["b"].formed == again.result().formed
    assert one.handlers["a"].verdict() is None
    assert (again.result().formed.number, again.result().rank) == (2, infos["a"].rank)
    assert again.result().formed.restart_count == 0


def test_few_of_many_waiting_nodes_read_the_roster(job):
    one = job(2, 6400, join=LONG)
    handlers = [one.node(f"n{number}") for number in range(40)]
    for handler in handlers:
        assert not handler.is_closed()  # the store has answered once
        handler.progress()
        assert not handler.is_closed()  # earlier requests are finished
    assert sum(one.backends[f"n{number}"].calls["roster"] for number in range(40)) < 10
