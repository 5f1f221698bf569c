"""The workers' store with torch's handlers, which must not share one store with the workers of all rounds.
`tests/e2e/test_torchrun_handlers.py` runs jobs with such a handler."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from elastic_core.compat.backends import NOT_SHARED, TorchrunHandler, store_not_shared

LONG = 60.0


def environment():
    return os.environ.get(NOT_SHARED)


class VariableRecorder:
    """Records the variable's value in each call."""

    def __init__(self):
        self.seen = []

    def next_rendezvous(self):
        self.seen.append(environment())
        return "round"

    @property
    def use_agent_store(self):
        self.seen.append(environment())
        return False


def test_variable_is_set_only_during_calls():
    foreign = VariableRecorder()
    handler = TorchrunHandler(foreign)
    before = environment()
    assert (handler.next_rendezvous(), handler.use_agent_store) == ("round", False)
    assert (before, foreign.seen, environment()) == (None, ["1", "1"], None)


def test_variable_is_removed_after_an_error():
    with pytest.raises(ZeroDivisionError), store_not_shared():
        raise ZeroDivisionError
    assert environment() is None


@pytest.mark.parametrize("value", ["0", "1", ""])
def test_users_value_is_kept(value, monkeypatch):
    monkeypatch.setenv(NOT_SHARED, value)
    with store_not_shared(), store_not_shared():
        assert environment() == value
    assert environment() == value


def test_last_overlapping_call_removes_variable():
    first, second = store_not_shared(), store_not_shared()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert environment() == "1"
    second.__exit__(None, None, None)
    assert environment() is None


def test_many_threads_leave_no_variable():
    begin = threading.Barrier(8)

    def hold():
        begin.wait(LONG)
        for _ in range(200):
            with store_not_shared():
                assert environment() == "1"

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(hold) for _ in range(8)]:
            done.result(LONG)
    assert environment() is None


@pytest.mark.torch
def test_static_handler_reports_its_shared_store():
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, multi_tenant=True)
    foreign = [StaticTCPRendezvous("127.0.0.1", server.port, rank, 2, "job", int(LONG)) for rank in (0, 1)]
    members = [TorchrunHandler(handler) for handler in foreign]
    assert [member.use_agent_store for member in members] == [True, True]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            infos = list(pool.map(TorchrunHandler.next_rendezvous, members, timeout=LONG))
            places = [info.bootstrap_store_info for info in infos]
            assert [(place.master_addr, place.master_port) for place in places] == [("127.0.0.1", server.port)] * 2
            assert [info.rank for info in infos] == [0, 1]
