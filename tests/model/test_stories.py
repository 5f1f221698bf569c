"""Stories of jobs that once failed. Each must end well."""

from __future__ import annotations

from elastic_testing import MemoryBackend, SharedMemory, World, eventually

from elastic_core.agent import RunResult, WorkerState, supervise
from elastic_core.agent.supervise import Order
from elastic_core.clock import Instant, SystemClock
from elastic_core.errors import RendezvousStateError
from elastic_core.interfaces import node as described
from elastic_core.interfaces.handler import RendezvousStoreInfo
from elastic_core.rendezvous.driver import Driver
from elastic_core.rendezvous.effects import WriteState
from elastic_core.rendezvous.model import Entry
from elastic_core.rendezvous.node import Node
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout


def world(*bounds, count=3, kind=World, lease=None, grace=0.0, max_restarts=()):
    timeout = RendezvousTimeout(close=20)
    settings = RendezvousSettings("job", *bounds, timeout, lease_ttl=lease)
    job = kind(settings, leases=lease is not None, grace=grace)
    for number in range(count):
        job.join(f"n{number}", max_restarts=dict(enumerate(max_restarts)).get(number, 3))
    job.run(8)
    return job


def test_finished_store_host_stays_until_the_end():
    """Its exit barrier timeout is over, but the store would end with it."""
    job = world(2, 2, count=2)
    job.succeed("n0")
    done = supervise.Observation(RunResult(WorkerState.SUCCEEDED))
    decision = supervise.await_others(done, Instant(301.0), Instant(300.0), hosts_store=True)
    if Order.RETIRE in decision.orders:
        job.leave("n0")
        job.partition("n1")
    job.run(60)
    assert job.nodes["n1"].works_in.number == 1


def test_restarted_agent_is_seated():
    """The store keeps the old entry until its lease ends."""
    job = world(1, 2, count=2, lease=30.0)
    job.crash("n1")
    job.join("n2", called="n1")
    job.run(90)
    assert job.members() == ["n0", "n1"]


class Stubborn(World):
    """The store refuses n0's writes of the state."""

    refuses = False

    def _answer(self, node, operation, now):
        if self.refuses and node.name == "n0" and isinstance(operation, WriteState):
            node.machine.broke(RendezvousStateError("too large"), now)
        else:
            super()._answer(node, operation, now)


def test_leader_that_cannot_write_is_replaced():
    job = world(2, 3, kind=Stubborn)
    job.refuses = True
    job.crash("n2")
    job.run(60)
    assert not job.state.seated("n2/1") or job.state.round.number > 1


class Watched(MemoryBackend):
    """Knows whether its node waits for newcomers."""

    waits = False

    def wait_for_roster(self, timeout, more=1):
        self.waits = not super().wait_for_roster(0.0)  # otherwise there is news
        try:
            return super().wait_for_roster(timeout, more)
        finally:
            self.waits = False


def test_node_may_leave_while_nodes_gather():
    """The next heartbeat is far away."""
    settings = RendezvousSettings("job", 2, 2, RendezvousTimeout(), keep_alive_interval=100.0)
    node = Node(Entry.of(described.Node("a"), "a/1"), settings)
    backend = Watched(SharedMemory())
    driver = Driver(node, backend, SystemClock())
    driver.ask(lambda node, now: node.begin(now))
    driver.tell(lambda node: node.want(RendezvousStoreInfo("a", 1)))
    driver.start()
    try:
        eventually(lambda: driver.ask(lambda node, now: node.election.leading) and backend.waits)
        assert driver.carry_out(lambda node: node.retire("asked to"), 3.0)
    finally:
        driver.stop()


def test_node_with_fewer_restarts_does_not_end_the_job():
    job = world(2, 2, count=2, max_restarts=(0, 3))
    job.fail("n0")
    job.run(20)
    assert not job.state.closed and job.state.restarts == 1


def test_nodes_that_cannot_connect_are_not_both_seated():
    job = world(1, 3)
    job.separate("n1", "n2")
    job.run(120)
    assert len(job.members()) == 2


def test_agents_with_one_host_name_share_a_round():
    """Each agent has process id 1 in its container."""
    job = world(1, 3, count=0)
    for name in ("x", "y"):
        job.join(name, called=described.generated_name("box"))
    job.run(60)
    assert len(job.members()) == 2
