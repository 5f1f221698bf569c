"""The contract for rendezvous backends, written as tests. docs/extend/backends.md has an example.

The tests in this module run several nodes on the backend, each with the core's handler.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import (
    Node,
    Outcome,
    ProcessFailure,
    RendezvousClosedError,
    RendezvousParameters,
    RendezvousTimeoutError,
    create_handler,
)
from elastic_testing.installed import installed_store
from elastic_testing.roster_promises import RosterPromises
from elastic_testing.state_promises import Clients, StatePromises
from elastic_testing.waiting import LONG, Background, eventually, raises, together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_core.plugin import Duration, RendezvousInfo, RoundHandler, Verdict

_MOMENT: Duration = 0.3
_LAST_CALL: Duration = 0.5
_PATIENT = 30  # heartbeats that may be missed; large, so that no node on a slow machine is considered lost


def _verdict(handler: RoundHandler) -> Verdict:
    verdict = eventually(handler.verdict, LONG, "the condition that the handler reports the end of the round")
    assert verdict is not None
    return verdict


def _agreed(handlers: list[RoundHandler]) -> dict[int, RendezvousInfo]:
    """Let all nodes join the next round, and check that they agree. Returns each node's result by rank."""
    infos = together([handler.next_rendezvous for handler in handlers])
    assert len({(info.formed, info.bootstrap_store_info) for info in infos}) == 1, f"the nodes do not agree: {infos}"
    assert {info.world_size for info in infos} == {len(handlers)}
    assert sorted(info.rank for info in infos) == list(range(len(handlers)))
    return {info.rank: info for info in infos}


def _names(info: RendezvousInfo) -> list[str]:
    assert info.formed is not None
    return [member.node for member in info.formed.members]


class RoundPromises(Clients):
    """End-to-end tests: nodes form rounds and receive notifications through the backend."""

    def test_nodes_form_round_and_agree(self, backend: Any) -> None:
        with self.handlers(backend, 3, (3, 3)) as nodes:
            infos = _agreed(nodes)
            assert sorted(_names(infos[0])) == ["node0", "node1", "node2"]
            infos[0].store.set("from rank 0", "hello")
            assert [info.store.get("from rank 0") for info in infos.values()] == [b"hello"] * 3

    def test_late_node_joins_next_round(self, backend: Any) -> None:
        with self.handlers(backend, 3, (2, 3)) as (*early, late):
            before = _names(_agreed(early)[0])
            joining = Background(late.next_rendezvous)
            for node in early:
                assert _verdict(node).outcome is Outcome.RESTART
            infos = [*together([node.next_rendezvous for node in early]), joining.result()]
            assert {info.world_size for info in infos} == {3}
            assert all(_names(info) == [*before, "node2"] for info in infos)
            assert infos[-1].formed is not None and infos[-1].formed.restart_count == 0

    def test_spare_waits_and_sees_job_closed(self, backend: Any) -> None:
        with self.handlers(backend, 4, (2, 2)) as (first, second, spare, newcomer):
            _agreed([first, second])
            joining = Background(spare.next_rendezvous)
            assert not joining.over(_MOMENT), "a node beyond the maximum did not wait"
            first.set_closed()
            assert _verdict(second).outcome is Outcome.CLOSED
            raises(RendezvousClosedError, joining.result)
            raises(RendezvousClosedError, newcomer.next_rendezvous)
            assert all(node.is_closed() for node in (first, second, spare, newcomer))

    def test_leaving_node_ends_round(self, backend: Any) -> None:
        # The long last call includes all three nodes in the first round, even if one is slow.
        with self.handlers(backend, 3, (2, 3), last_call=LONG) as nodes:
            _agreed(nodes)
            leaving, *others = nodes
            assert leaving.leave("it was asked to", LONG)
            assert all(_verdict(node).outcome is Outcome.RESTART for node in others)
            assert leaving.shutdown()  # its workers have stopped
            assert sorted(_names(_agreed(others)[0])) == ["node1", "node2"]

    def test_failure_counts_once_for_all_nodes(self, backend: Any) -> None:
        with self.handlers(backend, 2, (2, 2)) as nodes:
            failing = _agreed(nodes)
            for number in (1, 2):
                rank = next(rank for rank, info in failing.items() if _names(info)[rank] == "node0")
                nodes[0].report_failure({rank: ProcessFailure(0, 1, 1, global_rank=rank, reason="exit code 1")})
                verdicts = [_verdict(node) for node in nodes]
                assert [(verdict.outcome, verdict.failed) for verdict in verdicts] == [(Outcome.RESTART, True)] * 2
                failing = _agreed(nodes)
                assert failing[0].formed is not None and failing[0].formed.restart_count == number

    def test_job_closes_when_all_nodes_succeed(self, backend: Any) -> None:
        with self.handlers(backend, 2, (2, 2)) as nodes:
            _agreed(nodes)
            for node in nodes:
                node.report_success()
            verdicts = [_verdict(node) for node in nodes]
            assert [(verdict.outcome, verdict.succeeded) for verdict in verdicts] == [(Outcome.CLOSED, True)] * 2

    def test_lone_node_times_out(self, backend: Any) -> None:
        with self.handlers(backend, 1, (2, 2), join=1.0, connected=True) as (alone,):
            assert "2 nodes" in str(raises(RendezvousTimeoutError, alone.next_rendezvous))

    @contextlib.contextmanager
    def handlers(
        self,
        backend: Any,
        count: int,
        bounds: tuple[int, int],
        join: Duration = LONG,
        last_call: Duration = _LAST_CALL,
        connected: bool = False,
    ) -> Iterator[list[RoundHandler]]:
        """Create `count` nodes, each with its own client, and shut them down at the end. If `connected` is True, the
        clients connect first, so that a short `join` timeout does not include the time that this takes."""
        store = installed_store("memory")
        times: dict[str, Any] = {
            "join_timeout": join,
            "last_call_timeout": last_call,
            "keep_alive_max_attempt": _PATIENT,
        }

        def create(number: int, client: Any) -> RoundHandler:
            node = Node(f"node{number}", host=f"host{number}", max_restarts=3)
            params = RendezvousParameters("contract", "", "contract", *bounds, "127.0.0.1", node, **times)
            return create_handler(store, client, params)

        with self.peers(backend, count) as clients:
            if connected:
                for client in clients:
                    client.get_state()
            made = [create(number, client) for number, client in enumerate(clients)]
            try:
                yield made
            finally:
                together([handler.shutdown for handler in made])


class BackendContract(StatePromises, RosterPromises, RoundPromises):
    """See `interfaces.backend`. To use it with pytest, inherit from this class and define a fixture `backend`, which
    returns a client of a new job, and a method `peer`, which returns another client of the same job.

    Four optional methods enable more tests: `other_job`, `lose`, `forget` and `spoil`. If one of them is not defined,
    the tests that need it are skipped.

    The tests first call the two methods that every backend has, and then form rounds end to end. If the backend is a
    `RosterBackend`, its entries, heartbeats, waits and `close` are also tested.

    Attributes:
        largest: size in bytes of the largest state to test (300,000).
        lease: time limit in seconds for dropping a silent node's entry, if the backend shows no heartbeats (20).
        at_once: seconds allowed for calls that should return immediately, even on a slow machine (10).
        pushed: time limit in seconds, from the start of a change, for notifying a waiting client (1). Choose a larger
            value for a backend that has to poll because its store does not push changes.
    """
