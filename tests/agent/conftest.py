"""A scripted rendezvous handler, and local agents with fake workers."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from elastic_core import log
from elastic_core.agent import ProcessAgent, WorkerSpec
from elastic_core.builtin import MemoryStore
from elastic_core.interfaces.handler import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

sys.path.insert(0, str(Path(__file__).parent))  # helper modules are next to the tests that use them

from agent_fakes import FakeWorkers, RecordingObserver
from round_of_two import Ordered, OrderedRounds, close_job, pair_then


class ScriptedHandler(RendezvousHandler):
    """Forms a round of one node immediately. `script` maps a call number to a function that is called first: it may
    block, raise, or return another round. `waiting` has the results of `num_nodes_waiting`, then 0."""

    def __init__(self, script=None, waiting=(), closing_raises=None):
        self.script = script or {}
        self.waiting = list(waiting)
        self.closing_raises = closing_raises
        self.calls = 0
        self.closed = False
        self.released = threading.Event()

    def get_backend(self):
        return "scripted"

    def get_run_id(self):
        return "job"

    def next_rendezvous(self):
        self.calls += 1
        info = self.script.get(self.calls, lambda: None)()
        return info or self.round_of_one()

    def round_of_one(self, **changes):
        where = RendezvousStoreInfo("10.0.0.7", 29000 + self.calls)
        return RendezvousInfo(
            **{
                "store": MemoryStore(),
                "rank": 0,
                "world_size": 1,
                "bootstrap_store_info": where,
                **changes,
            }
        )

    def is_closed(self):
        return self.closed

    def set_closed(self):
        self.closed = True
        if self.closing_raises:
            raise self.closing_raises

    def num_nodes_waiting(self):
        return self.waiting.pop(0) if self.waiting else 0

    def shutdown(self):
        self.released.set()
        return True


class Node:
    """A local agent with fake workers, its handler and its observer."""

    def __init__(
        self,
        on_start,
        handler,
        workers=None,
        clock=None,
        contribute=None,
        size=2,
        hangs=None,
        observer=None,
        kind=ProcessAgent,
        **limits,
    ):
        self.handler = handler
        self.workers = workers or FakeWorkers(on_start)
        self.observer = observer or RecordingObserver()
        counts = {name: limits.pop(name) for name in ("max_restarts", "monitor_interval") if name in limits}
        self.spec = WorkerSpec("trainer", size, handler, entrypoint="train.py", **counts)
        self.agent = kind(
            self.spec,
            self.workers,
            node="node7",
            clock=clock,
            observer=self.observer,
            contribute=contribute,
            hangs=hangs,
            **limits,
        )

    def run(self):
        return self.agent.run("trainer")

    @property
    def facts(self):
        return [type(fact).__name__ for fact in self.observer.facts]

    @property
    def finished(self):
        return self.observer.facts[-1]


@pytest.fixture
def scripted_handler():
    """A function that makes a ScriptedHandler; blocked handlers are released afterwards."""
    made = []

    def make(*args, **kwargs):
        made.append(ScriptedHandler(*args, **kwargs))
        return made[-1]

    yield make
    for handler in made:
        handler.shutdown()


@pytest.fixture
def make_node(scripted_handler):
    """A function that makes a `Node`; `on_start` scripts its workers, see `FakeWorkers`."""
    made = []

    def make_node(on_start=None, handler=None, **kwargs):
        node = Node(on_start, handler or scripted_handler(), **kwargs)
        made.append(node)
        return node

    yield make_node
    for node in made:
        node.agent.close()
        node.workers.close()


@pytest.fixture
def make(make_node):
    """A function that makes a node in a round of two, given fields of `FakeRounds`, `FakeWorkers` and `WorkerSpec`.
    When it succeeds, the job is closed, unless `on_success` is given."""
    made = []

    def make(on_start, rounds=None, on_failure=None, on_success=close_job, can_announce=True, workers=Ordered,
             handlers=OrderedRounds, **kwargs):  # fmt: skip
        order = []
        handler = handlers(order, pair_then() if rounds is None else rounds, on_failure, on_success, can_announce)
        made.append(handler)
        fakes = {name: kwargs.pop(name) for name in ("ignore_signals", "unkillable") if name in kwargs}
        node = make_node(handler=handler, workers=workers(on_start, order, **fakes), **kwargs)
        node.order = order
        return node

    yield make
    for handler in made:
        handler.shutdown()


@pytest.fixture
def logged(capsys):
    """A function that returns the new log output at level info and above."""
    log.configure(level="info")
    yield lambda: capsys.readouterr().err
    log.configure(level="warning")
