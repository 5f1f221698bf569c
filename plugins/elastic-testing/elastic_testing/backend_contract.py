"""What every rendezvous backend must do, as tests. A backend proves itself in ten lines:

class TestMyBackend(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path):
        self.place = tmp_path
        return MyBackend(self.place, "job")

    def peer(self, backend):
        return MyBackend(self.place, "job")

Below: what a job sees of a backend, several nodes over it, each with the handler of the core.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from elastic_core.builtin.memory_store import MemoryStore
from elastic_core.clock import SystemClock, later
from elastic_core.errors import ProcessFailure, RendezvousClosedError, RendezvousTimeoutError
from elastic_core.interfaces.handler import Outcome
from elastic_core.interfaces.node import Node
from elastic_core.rendezvous import DynamicRendezvousHandler, RendezvousTimeout
from elastic_testing.roster_promises import RosterPromises
from elastic_testing.state_promises import Clients, StatePromises
from elastic_testing.waiting import LONG, Background, raised, together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_core.clock import Duration
    from elastic_core.interfaces.backend import RendezvousBackend
    from elastic_core.interfaces.handler import RendezvousInfo, Verdict
    from elastic_core.interfaces.store import Store

Handler = DynamicRendezvousHandler

_CLOCK = SystemClock()
_MOMENT: Duration = 0.3
_LAST_CALL: Duration = 0.5
_PATIENT = 30  # beats; none of these tests is about silence, so a slow machine or name service must not look like one


def _handler(
    backend: RendezvousBackend, store: Store, number: int, bounds: tuple[int, int], join: Duration, last_call: Duration
) -> Handler:
    node = Node(f"node{number}", host=f"host{number}", max_restarts=3)
    timeout = RendezvousTimeout(join=join, last_call=last_call)
    return DynamicRendezvousHandler.from_backend(
        "contract",
        store,
        backend,
        *bounds,
        local_addr="127.0.0.1",
        timeout=timeout,
        keep_alive_max_attempt=_PATIENT,
        node=node,
    )


def _verdict(handler: Handler) -> Verdict:
    """What has become of its round, once that is known."""
    told, until = threading.Event(), later(_CLOCK.now(), LONG)
    handler.subscribe(told.set)
    while (verdict := handler.verdict()) is None:
        assert told.wait(until - _CLOCK.now()), f"expected the end of a round to be told within {LONG:g} s"
        told.clear()
    return verdict


def _agreed(handlers: list[Handler]) -> dict[int, RendezvousInfo]:
    """All of them take part in the next round: what each was told, by its rank. They agree."""
    infos = together([handler.next_rendezvous for handler in handlers])
    assert len({(info.formed, info.bootstrap_store_info) for info in infos}) == 1, f"they do not agree: {infos}"
    assert {info.world_size for info in infos} == {len(handlers)}
    assert sorted(info.rank for info in infos) == list(range(len(handlers)))
    return {info.rank: info for info in infos}


def _names(info: RendezvousInfo) -> list[str]:
    assert info.formed is not None
    return [member.node for member in info.formed.members]


class RoundPromises(Clients):
    """End to end: what the backend holds is enough for nodes to find each other, and to be told."""

    def test_nodes_form_a_round_and_agree(self, backend: Any) -> None:
        with self.handlers(backend, 3, (3, 3)) as nodes:
            infos = _agreed(nodes)
            assert sorted(_names(infos[0])) == ["node0", "node1", "node2"]
            infos[0].store.set("from rank 0", "hello")
            assert [info.store.get("from rank 0") for info in infos.values()] == [b"hello"] * 3

    def test_one_that_comes_late_takes_part_in_the_next_round(self, backend: Any) -> None:
        with self.handlers(backend, 3, (2, 3)) as (*early, late):
            before = _names(_agreed(early)[0])
            joining = Background(late.next_rendezvous)
            for node in early:
                assert _verdict(node).outcome is Outcome.RESTART
            infos = [*together([node.next_rendezvous for node in early]), joining.result()]
            assert {info.world_size for info in infos} == {3}
            assert all(_names(info) == [*before, "node2"] for info in infos)
            assert infos[-1].formed is not None and infos[-1].formed.restart_count == 0

    def test_one_too_many_waits_and_learns_that_the_job_was_closed(self, backend: Any) -> None:
        with self.handlers(backend, 4, (2, 2)) as (first, second, spare, stranger):
            _agreed([first, second])
            joining = Background(spare.next_rendezvous)
            assert not joining.over(_MOMENT), "expected one too many to wait, found it back"
            first.set_closed()
            assert _verdict(second).outcome is Outcome.CLOSED
            assert isinstance(raised(joining.result), RendezvousClosedError)
            assert isinstance(raised(stranger.next_rendezvous), RendezvousClosedError)
            assert all(node.is_closed() for node in (first, second, spare, stranger))

    def test_a_node_that_leaves_is_missed_at_once(self, backend: Any) -> None:
        # All three are in the first round, however slow one of them is; the second need not wait for a last call.
        with self.handlers(backend, 3, (2, 3), last_call=LONG) as nodes:
            _agreed(nodes)
            leaving, *others = nodes
            assert leaving.leave("it was asked to", LONG)
            assert all(_verdict(node).outcome is Outcome.RESTART for node in others)
            assert leaving.shutdown()  # its workers have stopped
            assert sorted(_names(_agreed(others)[0])) == ["node1", "node2"]

    def test_a_failure_is_counted_once_for_all(self, backend: Any) -> None:
        with self.handlers(backend, 2, (2, 2)) as nodes:
            failing = _agreed(nodes)
            for number in (1, 2):
                rank = next(rank for rank, info in failing.items() if _names(info)[rank] == "node0")
                nodes[0].report_failure({rank: ProcessFailure(0, 1, 1, global_rank=rank, reason="exit code 1")})
                verdicts = [_verdict(node) for node in nodes]
                assert [(told.outcome, told.failed) for told in verdicts] == [(Outcome.RESTART, True)] * 2
                failing = _agreed(nodes)
                assert failing[0].formed is not None and failing[0].formed.restart_count == number

    def test_when_all_have_succeeded_the_job_is_over(self, backend: Any) -> None:
        with self.handlers(backend, 2, (2, 2)) as nodes:
            _agreed(nodes)
            for node in nodes:
                node.report_success()
            verdicts = [_verdict(node) for node in nodes]
            assert [(told.outcome, told.succeeded) for told in verdicts] == [(Outcome.CLOSED, True)] * 2

    def test_one_alone_gives_up_in_time_and_says_who_is_there(self, backend: Any) -> None:
        with self.handlers(backend, 1, (2, 2), join=1.0, connected=True) as (alone,):
            error = raised(alone.next_rendezvous)
            assert isinstance(error, RendezvousTimeoutError)
            assert "2 nodes" in str(error)

    @contextlib.contextmanager
    def handlers(
        self,
        backend: Any,
        count: int,
        bounds: tuple[int, int],
        join: Duration = LONG,
        last_call: Duration = _LAST_CALL,
        connected: bool = False,
    ) -> Iterator[list[Handler]]:
        """So many nodes, each with a client of its own; shut down at the end. `connected`: before they join, so that a
        short `join` does not end before the first answer of the store."""
        store = MemoryStore()
        with self.peers(backend, count) as clients:
            if connected:
                for client in clients:
                    client.get_state()
            made = [_handler(client, store, number, bounds, join, last_call) for number, client in enumerate(clients)]
            try:
                yield made
            finally:
                together([handler.shutdown for handler in made])


class BackendContract(StatePromises, RosterPromises, RoundPromises):
    """See `interfaces.backend`. For pytest: inherit from it, give a fixture `backend`, a client of a new job, which
    nobody else uses, and a method `peer`, another client of that job, as another node has one.

    What the backend can show, it shows with four more methods: `other_job`, a client of the same store
    for another job; `lose`, which takes the store away; `forget`, after which it is empty, as one that was started
    anew; `spoil`, which writes something foreign in the state's place. Their tests are skipped where they are not
    given.

    A backend of two methods is tested as far as it goes, and then end to end: handlers over it form rounds. One that is
    a `RosterBackend` is tested for its entries, beats, waits and `close` as well.

    Attributes:
        largest: bytes of the largest state that is tried (300,000).
        lease: seconds after which the entry of a node that beats no longer has been dropped, where the store does that
            (20).
        at_once: seconds within which what is to come back at once has come back, on any machine (10).
        pushed: seconds within which a client that waits is told of a change (1).
    """
