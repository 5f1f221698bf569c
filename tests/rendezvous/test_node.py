"""A node as a state machine: what it learns, and which operations it requests. No threads, no real time, and a store in
memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from elastic_testing import MemoryBackend
from one_node import WHERE, OneNode, meet

from elastic_core.clock import LONG_AGO, Instant
from elastic_core.errors import (
    DrainedError,
    ProcessFailure,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
)
from elastic_core.interfaces.handler import Outcome
from elastic_core.rendezvous import model
from elastic_core.rendezvous.codec import encoded_entry, encoded_state
from elastic_core.rendezvous.driver import Operations
from elastic_core.rendezvous.effects import (
    Announce,
    ChangeState,
    Heartbeat,
    Idle,
    ReadRoster,
    ReadState,
    Withdraw,
    WriteState,
)
from elastic_core.rendezvous.model import Cause, Entry, JoinStatus, State
from elastic_core.rendezvous.seal import HmacSeal, SignedBackend

OUTAGE = RendezvousConnectionError("connection refused")
INTERVAL, WINDOW = 1.0, 5.0  # seconds between two heartbeats, and of silence until a node is lost


@pytest.fixture
def alone():
    """A node that leads a round of which it is the only member."""
    one = OneNode()
    one.join()
    return one


@pytest.fixture
def pair():
    """Two members of a round; the first one leads."""
    leader = OneNode(min_nodes=2, max_nodes=2)
    other = OneNode(leader.memory, leader.clock, "b", min_nodes=2, max_nodes=2)
    meet(leader, other)
    assert leader.node.membership.running and other.node.membership.running
    return leader, other


def together(nodes, seconds):
    """Let time pass for nodes that share a clock, and deliver all news immediately."""
    memory, clock, delivered = nodes[0].memory, nodes[0].clock, None
    until = clock.now() + seconds
    while clock.now() < until:
        for one in nodes:
            one.settle()
        while delivered != (delivered := (memory.writes, memory.rosters)):
            for one in nodes:
                one.hear()
        clock.advance(0.25)


def kinds(operations):
    return [type(operation) for operation in operations]


def failure():
    return {0: ProcessFailure(0, 7, 1, global_rank=0, reason="exit code 1")}


# -- the first round


def test_member_of_a_new_round_meets_no_deadline():
    one = OneNode(join=10.0)
    one.clock.advance(9.9)
    one.node.begin(Instant(0.0))
    one.node.want(WHERE)
    one.settle()
    one.clock.advance(0.2)
    assert one.node.membership.running
    assert one.node.obstacle(one.clock.now()) is None


def test_round_with_an_outdated_address_ends(pair):
    """Members would look for rank 0 at an address that the node no longer uses."""
    leader, other = pair
    leader.write(lambda state: model.ended(state, Cause.LEFT, "b", "b left"))
    seats = [leader.entries["a/1"].seat, replace(other.entries["b/1"], port=4321).seat]
    other.node.begin(other.clock.now())
    other.node.want(WHERE)
    leader.write(lambda state: replace(model.formed(state, seats, 3, ""), round=model.RoundId(2, "a/1.9")))
    other.settle()
    assert not other.node.membership.running
    assert (other.state.open, other.state.end.reason) == (False, "b has since announced another address")


def test_spare_waits_without_a_deadline(alone):
    spare = OneNode(alone.memory, alone.clock, "b", join=10.0)
    spare.join()
    assert spare.node.join_status is JoinStatus.SPARE
    together((alone, spare), 100.0)
    assert spare.node.obstacle(spare.clock.now()) is None


# -- requests


def test_request_is_settled_once_carried_out(alone):
    request = alone.node.close("enough", succeeded=False)
    assert alone.node.pop_settled() == ()
    assert kinds(alone.settle()) == [WriteState, ReadRoster]
    assert alone.node.pop_settled() == ((request, None),)
    assert alone.node.pop_settled() == ()
    assert alone.state.closed.reason == "enough"


def test_request_without_effect_is_settled_without_a_write(alone):
    alone.node.close("enough", succeeded=False)
    alone.settle()
    again = alone.node.close("once more", succeeded=False)
    assert kinds(alone.settle()) == []
    assert (again, None) in alone.node.pop_settled()
    assert alone.state.closed.reason == "enough"


def test_refused_write_is_decided_again(alone):
    alone.write(lambda state: model.drained(state, "z/1"))
    request = alone.node.close("enough", succeeded=False)
    assert kinds(alone.settle())[:2] == [WriteState, WriteState]
    assert (request, None) in alone.node.pop_settled()
    assert (alone.state.draining, bool(alone.state.closed)) == ({"z/1": None}, True)


def test_failing_request_is_given_up_after_a_timeout(alone):
    alone.faults[WriteState] = fault = RuntimeError("too large")
    request = alone.node.close("enough", succeeded=False)
    alone.run(WINDOW - 1.0)
    assert alone.node.pop_settled() == ()  # the error may be temporary
    alone.run(2.0)
    assert alone.node.pop_settled() == ((request, fault),)
    assert alone.asked.count(WriteState) <= 12
    assert alone.memory.entries["a/1"].beats >= 5
    del alone.faults[WriteState]
    again = alone.node.close("enough", succeeded=False)
    alone.settle()
    assert alone.node.pop_settled() == ((again, None),)


def test_request_waits_for_the_end_of_an_outage(alone):
    alone.backend.reachable = False
    request = alone.node.close("enough", succeeded=False)
    alone.run(1000.0)
    assert alone.node.pop_settled() == ()
    alone.backend.reachable = True
    alone.run(1.1)
    assert alone.node.pop_settled() == ((request, None),)


def test_retries_of_one_request_back_off(alone):
    """As when a store has become read-only."""
    alone.faults[WriteState] = OUTAGE
    alone.node.close("enough", succeeded=False)
    alone.run(5.0)
    del alone.asked[:]
    alone.run(20.0)
    assert 15 <= alone.asked.count(WriteState) <= 25
    assert alone.node.connection.outage is OUTAGE


def test_second_nodes_failure_is_in_its_entry(pair):
    """Otherwise, when a thousand nodes fail together, each would wait for the writes of all others."""
    leader, other = pair
    leader.node.fail(failure())
    leader.settle()
    other.node.fail(failure())
    assert kinds(other.settle())[:2] == [WriteState, Announce]  # it has not read the new state, so its write is refused
    report = other.entries["b/1"].reported
    assert (report.round, report.failure.key) == (leader.state.round, "b/1")
    leader.hear()
    assert [it.key for it in leader.state.end.reports] == ["a/1", "b/1"]


def test_failure_is_written_before_node_is_ready(pair):
    """A peer that sees it ready must find the report; otherwise the round could end for another cause at no cost."""
    _, other = pair
    other.node.fail(failure())
    other.node.want(WHERE)
    asked = kinds(other.settle())
    assert asked.index(WriteState) < asked.index(Announce)
    assert (other.state.end.cause, other.entries["b/1"].after.number) == (Cause.FAILURE, 1)


# -- lost answers


def test_announcement_with_lost_answer_is_repeated_as_one(alone):
    other = OneNode(alone.memory, alone.clock, "b")
    other.backend.lose_answers = 1
    other.join()
    assert other.node.registered is None
    other.run(0.1)
    assert list(alone.memory.entries) == ["a/1", "b/1"]
    assert other.node.registered == other.entries["b/1"]


def test_write_with_a_lost_answer_is_recognized(alone):
    alone.backend.lose_answers = 1
    request = alone.node.close("enough", succeeded=False)
    alone.settle()
    assert alone.node.pop_settled() == ()
    alone.run(0.1)
    assert alone.node.pop_settled() == ((request, None),)
    assert alone.memory.writes == 2  # not a third time


def test_round_with_a_lost_answer_forms_once():
    one = OneNode()
    one.node.want(WHERE)
    while not isinstance(one.step(), Announce):
        pass
    one.backend.lose_answers = 1
    one.run(0.5)
    assert (one.state.round.number, one.memory.writes) == (1, 1)
    assert one.node.membership.round.number == 1


# -- outages


def test_members_entry_after_an_outage_is_not_ready(alone):
    """Otherwise a node whose workers run could get a seat in another round if the store has lost its round."""
    alone.backend.reachable = False
    alone.run(2.0)
    alone.backend.reachable = True
    assert kinds(alone.run(1.1))[:2] == [Announce, ReadState]
    assert (alone.entries["a/1"].waits, alone.entries["a/1"].after) == (False, alone.state.round)
    alone.join()
    assert alone.entries["a/1"].waits


def test_unreadable_state_is_repaired_after_an_outage(alone):
    alone.backend.reachable = False
    alone.run(2.0)
    alone.memory.forget()
    alone.memory.state = (b"not ours", 99)
    alone.backend.reachable = True
    alone.run(5.0)
    assert alone.node.fault is None
    assert alone.memory.entries["a/1"].beats >= 2
    assert alone.state.round.number == 1


def test_new_request_skips_the_retry_pause(alone):
    alone.backend.reachable = False
    alone.run(10.0)
    alone.backend.reachable = True
    alone.node.close("enough", succeeded=False)
    alone.settle()
    assert alone.state.closed


def test_repeated_fault_is_logged_once(alone):
    alone.faults[Heartbeat] = RuntimeError("odd")
    alone.run(20.0)
    assert alone.notes.count("rendezvous fault") == 1
    assert alone.node.fault is alone.faults[Heartbeat]
    del alone.faults[Heartbeat]
    alone.run(2.0)
    assert alone.node.fault is None


def test_long_outage_and_its_end_are_logged_once(alone):
    alone.backend.reachable = False
    for _ in range(10):
        alone.run(1.0)
        alone.node.notice(alone.clock.now())
    alone.backend.reachable = True
    alone.run(2.0)
    notes = alone.notes
    assert (notes.count("store out of reach"), notes.count("store is back")) == (1, 1)


def test_hung_operation_is_an_outage(alone):
    alone.clock.advance(INTERVAL)
    assert isinstance(alone.node.next(alone.clock.now()), Heartbeat)
    assert alone.node.connection.fence_at(0.0, alone.clock.now()) == alone.clock.now() + WINDOW - INTERVAL
    alone.clock.advance(WINDOW - INTERVAL)
    assert alone.node.verdict(alone.clock.now()).outcome is Outcome.FENCED


def test_older_state_under_the_known_token_is_replaced(pair):
    """After it has reverted, a store uses the numbers of its versions again."""
    _, other = pair
    older = other.state
    other.node.fail({})
    other.run(0.1)
    known = other.node.state
    assert not known.open
    other.node.state_changed()
    assert isinstance(other.node.next(other.clock.now()), ReadState)
    other.node.answered((older, other.node.token), other.clock.now())
    assert isinstance(other.step(), Heartbeat)  # its entry may be lost, too
    given_back = other.node.next(other.clock.now())
    assert isinstance(given_back, WriteState)
    assert given_back.state == known


def run_slowly(one, takes, count):
    """Carry out `count` operations. The answer to each arrives after so many seconds."""
    for _ in range(count):
        while isinstance(step := one.node.next(one.clock.now()), Idle):
            one.clock.advance(max(step.until - one.clock.now(), 0.0))
        answer = one.operations.perform(step)
        one.clock.advance(takes)
        one.node.answered(answer, one.clock.now())


@pytest.mark.parametrize("takes", [0.4 * WINDOW, 1.2 * WINDOW])
def test_failure_is_reported_to_a_store_so_slow_that_all_heartbeats_are_belated(pair, takes):
    _, other = pair
    run_slowly(other, takes, 20)
    other.node.fail({})
    run_slowly(other, takes, 20)
    assert other.state.end.cause is Cause.FAILURE


def test_leader_declares_a_node_lost_in_a_slow_store(pair):
    leader, other = pair
    run_slowly(leader, INTERVAL, 40)
    assert leader.state.end.cause is Cause.LOST
    assert leader.state.gone == (other.key,)


def test_state_that_was_pushed_before_a_suspension_confirms_no_heartbeat(pair):
    _, other = pair
    other.clock.advance(10 * WINDOW)
    now, pushed = other.clock.now(), replace(other.state, done=("a/1",), serial=other.state.serial + 1)
    assert isinstance(other.step(), Heartbeat)
    assert isinstance(other.node.next(now), ReadState)
    other.node.answered((pushed, "pushed"), now)
    assert isinstance(other.node.next(now), ReadState)
    assert other.node.connection.fence_at(0.0, now) < now
    other.node.answered((pushed, "pushed"), now)
    other.step()
    assert other.node.connection.fence_at(0.0, now) > now


def test_fenced_member_reports_that_it_was_cut_off(pair):
    _, other = pair
    other.backend.reachable = False
    other.run(WINDOW - 0.5)
    assert other.node.verdict(other.clock.now()) is None
    other.run(1.0)
    assert other.node.verdict(other.clock.now()).outcome is Outcome.FENCED
    other.node.want(WHERE)
    other.backend.reachable = True
    other.run(2.0)
    assert (other.state.end.cause, other.state.end.reason) == (Cause.LOST, "b was cut off from the store")


def test_stop_deadline_moves_while_the_store_answers(pair):
    _, other = pair
    now = other.clock.now()
    assert other.node.stop_by(now, 0.0) == now + WINDOW - INTERVAL / 2  # each answer of the store moves the deadline
    other.node.leave("drained")
    other.run(0.1)
    assert other.node.state.gone == (other.key,)
    other.backend.reachable = False  # the store has ended with the last agent that had workers
    other.run(WINDOW + INTERVAL)
    assert other.node.stop_by(other.clock.now(), 0.0) is None


def test_closed_job_sets_no_stop_deadline(pair):
    _, other = pair
    other.node.close("done", succeeded=True)
    other.run(1.0)
    assert other.node.stop_by(other.clock.now(), 0.0) is None


def test_workers_of_a_fenced_node_get_half_a_heartbeat(pair):
    _, other = pair
    other.backend.reachable = False
    other.run(INTERVAL + WINDOW - 0.1)  # the first unanswered heartbeat is due after one interval
    now = other.clock.now()
    assert other.node.stop_by(now, 0.0) - other.node.connection.fence_at(0.0, now) == pytest.approx(INTERVAL / 2)
    assert other.node.stop_by(now, 0.0) < now


def test_workers_of_a_lost_node_get_no_time(pair):
    one, other = pair
    one.node.request(ChangeState(model.ended, (Cause.LOST, "b", "lost b", (other.key,))))
    one.run(0.1)
    other.hear()
    assert other.node.state.gone == (other.key,)
    assert other.node.stop_by(other.clock.now(), 0.0) == LONG_AGO


def test_workers_of_a_replaced_round_get_no_time():
    one = OneNode(min_nodes=1, max_nodes=2, last_call=0.1)
    other = OneNode(one.memory, one.clock, "b", min_nodes=1, max_nodes=2)
    together((one, other), 0.0)
    one.join()
    other.join()
    together((one, other), 1.0)
    assert other.node.membership.running
    other.backend.reachable = False
    one.run(2 * WINDOW)
    one.node.want(WHERE)
    one.run(2 * WINDOW)
    assert (one.state.round.number, one.node.membership.round.number) == (2, 2)
    other.backend.reachable = True
    other.hear()
    assert other.node.stop_by(other.clock.now(), 0.0) == LONG_AGO


def test_own_failure_before_fencing_stays_a_failure(pair):
    """Otherwise workers that fail whenever a link fails would never use up the restarts."""
    _, other = pair
    other.node.fail({})
    other.backend.reachable = False
    other.run(WINDOW - INTERVAL / 2)
    assert other.node.verdict(other.clock.now()).outcome is Outcome.FENCED
    other.node.want(WHERE)
    other.backend.reachable = True
    other.run(2.0)
    assert other.state.end.cause is Cause.FAILURE


def test_peer_failure_after_fencing_counts_as_loss(pair):
    """Fencing stopped workers, so their peers failed; the node returns before any peer has missed it."""
    one, other = pair
    other.backend.reachable = False
    other.run(WINDOW + 0.5)
    assert other.node.verdict(other.clock.now()).outcome is Outcome.FENCED
    one.node.fail({})
    one.run(0.1)
    assert one.state.end.cause_unclear
    other.node.want(WHERE)
    other.backend.reachable = True
    other.run(2.0)
    assert (other.state.end.cause, other.state.end.by, other.state.restarts) == (Cause.LOST, "b", 0)


def test_store_that_never_answered_has_a_shorter_timeout():
    one = OneNode(min_nodes=2, max_nodes=2, join=600.0, connect=10.0)
    one.backend.reachable = False
    one.join()
    one.run(9.9)
    assert one.node.obstacle(one.clock.now()) is None
    assert one.node.progress() == "connecting to the store at here:1"
    one.run(0.2)
    error = one.node.obstacle(one.clock.now())
    assert isinstance(error, RendezvousConnectionError)
    assert "store at here:1 within 10 s (--rdzv-conf=connect_timeout): " in str(error)


def test_store_that_answered_once_has_the_join_timeout():
    one = OneNode(min_nodes=2, max_nodes=2, join=60.0, connect=10.0)
    one.join()
    one.backend.reachable = False
    one.run(59.0)
    assert one.node.obstacle(one.clock.now()) is None
    one.run(2.0)
    assert isinstance(one.node.obstacle(one.clock.now()), RendezvousConnectionError)


@pytest.mark.parametrize("connect", [None, 100.0])
def test_no_wait_exceeds_the_join_timeout(connect):
    one = OneNode(min_nodes=2, max_nodes=2, join=60.0, connect=connect)
    one.backend.reachable = False
    one.join()
    one.run(59.0)
    assert one.node.obstacle(one.clock.now()) is None
    one.run(1.1)
    assert "within 60 s (--rdzv-conf=join_timeout)" in str(one.node.obstacle(one.clock.now()))


def test_join_timeout_restarts_when_the_store_fails():
    one = OneNode(min_nodes=2, max_nodes=2, join=60.0)
    leader = OneNode(one.memory, one.clock, "b", min_nodes=1, max_nodes=1)
    leader.join()
    one.join()
    together((leader, one), 100.0)
    one.backend.reachable = False
    one.run(59.0)
    assert one.node.obstacle(one.clock.now()) is None
    one.run(62.0)
    assert isinstance(one.node.obstacle(one.clock.now()), RendezvousConnectionError)


# -- a store that lost its data


def test_dropped_entry_is_announced_again(alone):
    alone.memory.drop("a/1")
    assert Announce in kinds(alone.run(INTERVAL))
    assert list(alone.memory.entries) == ["a/1"]
    assert "entry dropped" in alone.notes
    assert alone.node.verdict(alone.clock.now()) is None


def test_roster_shows_that_the_entry_was_dropped(alone):
    alone.memory.leases = True
    alone.hear()
    alone.memory.drop("a/1")
    assert kinds(alone.hear())[-2:] == [Announce, ReadRoster]


def test_empty_store_gets_the_known_state_back(alone):
    known = alone.state
    alone.memory.forget()
    assert [kind for kind in kinds(alone.hear()) if kind in (WriteState, Announce)] == [Announce, WriteState]
    assert alone.state == known
    assert "store lost its state" in alone.notes


def test_restored_state_is_not_written_again(pair):
    leader, other = pair
    known = leader.state
    leader.memory.forget()
    other.hear()
    assert other.state == known
    before = leader.memory.writes
    leader.hear()
    assert leader.memory.writes == before
    assert sorted(leader.memory.entries) == ["a/1", "b/1"]


def test_failed_restoration_is_retried(alone):
    known = alone.state
    alone.memory.forget()
    alone.faults[WriteState] = OUTAGE
    alone.hear()
    alone.run(3.0)
    assert alone.memory.state is None
    del alone.faults[WriteState]
    alone.run(2.0)
    assert alone.state == known


def test_missing_entry_after_data_loss_has_a_full_timeout(pair):
    leader, _ = pair
    leader.memory.forget()
    leader.hear()
    leader.run(WINDOW - 0.5)
    assert leader.state.open
    leader.run(1.0)
    assert leader.state.gone == ("b/1",)


def test_restarted_heartbeat_counter_is_not_late(pair):
    leader, other = pair
    leader.run(WINDOW - 0.5)
    leader.memory.forget()
    other.hear()  # restores the known state
    leader.hear()
    assert leader.memory.entries["b/1"].beats <= 1  # as low as before
    leader.run(1.2)
    assert leader.state.open


def test_single_ended_lease_means_loss_after_a_moment(pair):
    leader, _ = pair
    leader.memory.leases = True
    leader.hear()
    leader.memory.drop("b/1")
    leader.hear()
    assert leader.state.open  # a store can end all leases together
    leader.run(1.0)
    assert leader.state.gone == ("b/1",)


# -- leadership


def test_leader_without_roster_yields_leadership(pair):
    leader, _ = pair
    leader.faults[ReadRoster] = RuntimeError("no roster today")
    together(pair, 5 * WINDOW)
    assert [one.node.election.leading for one in pair] == [False, True]
    assert leader.notes.count("no longer leader") == 1
    assert leader.state.open, "it sends heartbeats, so it is not lost"
    assert leader.memory.entries["a/1"].beats >= 20


def test_leader_that_cannot_write_yields_leadership(pair):
    leader, _ = pair
    leader.faults[WriteState] = RendezvousStateError("expected less than 1 MiB, found more")
    leader.write(lambda state: model.drained(state, "b/1"))
    together(pair, 3 * WINDOW)
    assert [one.node.election.leading for one in pair] == [False, True]
    assert not leader.state.open


def test_former_leader_may_lead_again_later(alone):
    alone.faults[ReadRoster] = RuntimeError("no roster today")
    alone.run(5.0)
    assert not alone.node.election.leading
    del alone.faults[ReadRoster]
    alone.run(9 * WINDOW)
    assert not alone.node.election.leading
    alone.run(3 * WINDOW)
    assert alone.node.election.leading


def test_departed_leader_is_replaced_immediately(pair):
    leader, other = pair
    leader.memory.drop("a/1")
    leader.memory.vacant = True
    other.hear()
    assert other.node.election.leading


def test_leader_withdraws_a_dead_entry():
    leader = OneNode(min_nodes=3, max_nodes=3)
    other = OneNode(leader.memory, leader.clock, "b", min_nodes=3, max_nodes=3)
    leader.join()
    other.join()
    leader.run(2 * WINDOW - 1.0)
    assert "b/1" in leader.memory.entries
    leader.run(2.0)
    assert list(leader.memory.entries) == ["a/1"]


@pytest.mark.parametrize("entry", [b"not an entry", encoded_entry(Entry("ghost/1", "ghost"))])
def test_invalid_entry_gets_no_seat_and_is_withdrawn(entry):
    one = OneNode()
    one.backend.announce("stranger/1", entry)
    one.join()
    one.run(3 * WINDOW)
    assert list(one.memory.entries) == one.members == ["a/1"]
    assert one.node.election.leading


@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "another"])
def test_any_node_reports_an_ended_agent(pair, leads):
    one, ended = pair if leads else pair[::-1]
    one.node.lost(ended.key)
    assert kinds(one.settle()) == [ReadRoster, WriteState, ReadRoster, Withdraw, ReadRoster]
    assert (one.state.end.cause, one.state.gone) == (Cause.LOST, (ended.key,))
    assert one.state.end.reason == f"lost {ended.node.entry.node}: its agent has ended"
    assert list(one.entries) == [one.key]
    assert kinds(one.run(1.0)) == [Heartbeat, ReadRoster]


def test_next_round_does_not_wait_for_an_ended_agent():
    leader = OneNode(max_nodes=2, last_call=0.0)
    other = OneNode(leader.memory, leader.clock, "b", max_nodes=2, last_call=0.0)
    for one in (other, leader):
        leader.join()
        other.join()
        one.hear()
    together([leader, other], 3)
    assert leader.members == ["a/1", "b/1"]
    other.node.lost("a/1")
    other.settle()
    other.join()
    assert (other.state.round.number, other.members) == (leader.node.membership.round.number + 1, ["b/1"])


def test_failure_before_an_agents_end_counts_as_loss(pair):
    _, other = pair
    other.node.fail({})
    other.settle()
    other.node.lost("a/1")
    other.settle()
    assert other.state.end.cause is Cause.LOST
    assert other.state.end.reason.startswith("lost a: its agent has ended; what followed: ")
    assert (other.state.restarts, other.state.gone) == (0, ("a/1",))
    assert other.node.election.leading  # the former leader has left


def test_ended_agent_that_had_succeeded_is_not_lost(pair):
    leader, other = pair
    leader.node.succeed()
    leader.settle()
    assert leader.node.progress() == "1 of 2 nodes are done; still working: b"
    leader.write(lambda state: state)
    other.node.lost("a/1")
    other.settle()
    assert (other.state.open, other.state.done) == (True, ("a/1",))


def test_agent_that_had_left_is_not_lost(pair):
    leader, other = pair
    leader.node.retire("it goes")
    leader.settle()
    other.node.lost("a/1")
    assert WriteState not in kinds(other.hear())
    assert other.state.end.cause is Cause.LEFT


def test_node_wrongly_reported_as_ended_rejoins(pair):
    """The report was wrong, whatever it was that ended."""
    leader, other = pair
    other.node.lost("a/1")
    other.settle()
    leader.hear()
    meet(*pair)
    together(pair, 3)
    assert (other.state.round.number, other.members) == (2, ["a/1", "b/1"])
    together(pair, 20)
    assert other.state.round.number == 2


def test_members_with_lifelines_watch_their_neighbors(pair):
    leader, other = pair
    assert (leader.node.neighbour, other.node.neighbour) == (None, None)  # they have no lifeline
    for one in pair:
        one.node.want(WHERE, lifeline=7)
    together(pair, 3)
    watched, round_id = leader.node.neighbour
    assert (watched.key, watched.lifeline, round_id) == ("b/1", 7, leader.state.round)
    assert other.node.neighbour[0].key == "a/1"
    other.node.leave("it goes")
    assert other.node.neighbour is None


def test_spare_of_a_silent_store_has_the_join_timeout(pair):
    leader, _ = pair
    spare = OneNode(leader.memory, leader.clock, "c", min_nodes=2, max_nodes=2, join=60.0)
    spare.join()
    leader.clock.advance(100.0)
    assert spare.node.obstacle(spare.clock.now()) is None
    assert not isinstance(spare.node.next(spare.clock.now()), Idle)  # it has sent a request and has no answer
    spare.clock.advance(59.0)
    assert spare.node.obstacle(spare.clock.now()) is None
    spare.clock.advance(2.0)
    assert "the rendezvous store did not answer within 60 s" in str(spare.node.obstacle(spare.clock.now()))


# -- joining again, leaving, and the end


def test_member_of_an_unseen_round_is_ready_for_the_next(pair):
    leader, _ = pair
    leader.node.fail(failure())
    leader.settle()
    late = OneNode(
        leader.memory, leader.clock, "b", min_nodes=2, max_nodes=2
    )  # the same node, which has not read the state yet
    late.join()
    assert late.entries["b/1"].after == leader.state.round


def test_node_that_slept_is_not_ready(pair):
    leader, other = pair
    leader.write(lambda state: model.ended(state, Cause.LOST, "b", "lost b", ("b/1",)))
    leader.write(lambda state: model.formed(state, [state.seats[0]], 3, "", {"a/1", "b/1"}))
    leader.memory.drop("b/1")
    other.run(INTERVAL)
    assert not other.entries["b/1"].waits
    assert other.node.verdict(other.clock.now()).outcome is Outcome.RESTART
    other.node.want(WHERE)
    other.settle()
    assert (other.entries["b/1"].after, other.entries["b/1"].waits) == (leader.state.round, True)


def test_leaving_nodes_entry_goes_when_its_workers_stop(pair):
    leader, other = pair
    request = other.node.leave("it was asked to")
    assert [kind for kind in kinds(other.settle()) if kind in (WriteState, Withdraw)] == [WriteState]
    assert other.node.pop_settled()[-1] == (request, None)
    assert leader.state.end.reason == "b left: it was asked to"
    leader.hear()
    leader.join()
    assert leader.node.gathering.missing == ("b",)
    request = other.node.retire("it was shut down")
    assert kinds(other.settle()) == [Withdraw]
    assert other.node.pop_settled()[-1] == (request, None)
    assert list(leader.memory.entries) == ["a/1"]


def test_leaving_without_workers_withdraws_the_entry(alone):
    one = OneNode(alone.memory, alone.clock, "b", min_nodes=2, max_nodes=2)
    one.join()
    one.node.leave("it was asked to")
    one.settle()
    assert "b/1" not in alone.memory.entries


def test_leaving_after_success_keeps_the_round(pair):
    leader, other = pair
    other.node.succeed()
    other.node.leave("it was shut down")
    other.settle()
    assert (leader.state.open, leader.state.done) == (True, ("b/1",))


def test_leaving_before_announcing_withdraws_nothing():
    one = OneNode()
    request = one.node.leave("it was asked to")
    assert kinds(one.settle()) == [ReadState]
    assert one.node.pop_settled()[-1] == (request, None)


@pytest.mark.parametrize("ends", [lambda node: node.retire("it was asked to"), lambda node: node.shut_down()])
def test_joining_after_the_end_is_refused(ends):
    one = OneNode()
    ends(one.node)
    one.join()
    assert not one.memory.entries
    assert not one.node.membership.joins
    assert isinstance(one.node.obstacle(one.clock.now()), RendezvousGracefulExitError)


def test_withdrawn_join_withdraws_the_entry():
    one = OneNode(min_nodes=2, max_nodes=2)
    one.join()
    one.node.step_back()
    assert Withdraw in kinds(one.settle())
    assert not one.memory.entries


def test_repeated_join_keeps_the_entry():
    one = OneNode(min_nodes=2, max_nodes=2)
    one.join()
    one.node.step_back()
    one.node.want(WHERE)
    assert Withdraw not in kinds(one.settle())
    assert list(one.memory.entries) == ["a/1"]


def test_finished_members_are_not_among_the_unfinished(alone, build):
    assert alone.node.unfinished() == (0,)
    alone.node.state = replace(alone.node.state, seats=build.seats("abc"), done=("b",))
    assert alone.node.unfinished() == (0, 2)
    alone.node.state = replace(alone.node.state, round=model.RoundId(7))
    assert alone.node.unfinished() is None


def test_store_host_lingers_only_if_no_other_node_stays(alone):
    alone.node.linger()
    assert not alone.node.lingers
    state = alone.node.state
    for draining, lingers in (({"z/1": None, alone.node.key: None}, True), ({alone.node.key: None}, False)):
        alone.node.state = replace(state, draining=draining)
        alone.node.linger()
        assert alone.node.lingers == lingers
    alone.node.state = state
    alone.node.close("enough", succeeded=True)
    alone.settle()
    alone.backend.reachable = False
    alone.run(2.0)
    alone.node.linger()
    assert not alone.node.lingers


@pytest.mark.parametrize(("max_nodes", "max_restarts"), [(2, 3), (3, 3), (2, 0)])
def test_node_with_other_settings_than_the_job_says_so(max_nodes, max_restarts):
    leader = OneNode(min_nodes=2, max_nodes=2)
    other = OneNode(leader.memory, leader.clock, "b", min_nodes=2, max_nodes=max_nodes)
    other.node.entry = replace(other.node.entry, max_restarts=max_restarts)
    meet(leader, other)
    assert (other.members, other.state.max_restarts) == (["a/1", "b/1"], 3)
    assert ("settings differ" in other.notes) == ((max_nodes, max_restarts) != (2, 3))
    assert "settings differ" not in leader.notes


def test_bounds_of_a_round_that_is_over_do_not_count():
    """Such as those of a job that was stopped, and starts again with other bounds."""
    before = OneNode(min_nodes=1, max_nodes=1)
    before.join()
    before.run(6.0)
    before.node.leave("stopped")
    before.run(1.0)
    after = OneNode(before.memory, before.clock, "b", min_nodes=1, max_nodes=2)
    after.join()
    after.run(20.0)
    assert (after.members, after.state.max_nodes) == (["b/1"], 2)
    assert "settings differ" not in after.notes


# -- a foreign state, signed with another secret, before the first round


@pytest.fixture
def guarded():
    """A node with a secret, and a state written by nodes with another secret."""
    one, others = OneNode(), HmacSeal("job", [b"another secret, also"])
    one.operations = Operations(SignedBackend(one.backend, HmacSeal("job", [b"a secret of the job"])))
    foreign = others.sealed("state", encoded_state(State(round=model.RoundId(4), open=True)))
    one.write_foreign = lambda: MemoryBackend(one.memory).set_state(foreign, one.memory.state and one.memory.state[1])
    one.write_foreign()
    return one


def test_unclaimed_foreign_state_is_overwritten(guarded):
    guarded.join()
    assert WriteState not in guarded.asked, "those whose it may be have time to do it"
    guarded.run(20.0)
    assert (guarded.node.state.round.number, guarded.node.state.open) == (1, True)
    assert guarded.node.obstacle(guarded.clock.now()) is None


def test_short_join_timeout_names_the_foreign_secret(guarded):
    """The store has answered, so `no answer` would be wrong."""
    guarded.join()
    guarded.run(0.5)
    error = guarded.node.obstacle(guarded.node.join_deadline)
    assert isinstance(error, RendezvousStateError)
    assert "--rdzv-secret-file" in str(error)


def test_outage_after_a_foreign_state_is_named_as_the_obstacle(guarded):
    guarded.join()
    guarded.run(0.5)
    guarded.operations = Operations(guarded.backend)
    guarded.backend.reachable = False
    guarded.run(5.0)
    error = guarded.node.obstacle(guarded.node.join_deadline)
    assert isinstance(error, RendezvousConnectionError)


def test_state_restored_by_foreign_nodes_ends_the_join(guarded):
    foreign = guarded.memory.state[0]
    guarded.join()
    for _ in range(60):
        guarded.run(0.5)
        if guarded.memory.state[0] != foreign:
            guarded.write_foreign()
            guarded.hear()
    error = guarded.node.obstacle(guarded.clock.now())
    assert isinstance(error, RendezvousStateError)
    assert "--rdzv-secret-file" in str(error)
    assert guarded.asked.count(WriteState) == 3
    assert guarded.memory.state[0] == foreign


@pytest.mark.parametrize("alone", [True, False])
def test_lost_node_leaves_a_job_that_was_stopped(alone):
    """The request to leave does not name it. The other member may have formed a round without it."""
    first = OneNode(min_nodes=1, max_nodes=2)
    lost = OneNode(first.memory, first.clock, "b", min_nodes=1, max_nodes=2)
    meet(first, lost)
    assert first.members == ["a/1", "b/1"]

    def stop(state):
        over = model.ended(state, Cause.LOST, "b", "b was lost", ("b/1",))
        if alone:
            over = model.ended(model.formed(over, [state.seats[0]], 3, "", {"a/1"}), Cause.LEFT, "a", "left", ("a/1",))
        return replace(over, draining={"a/1": None}, stopped=over.round)

    first.write(stop)
    last = first.state.round
    fresh = OneNode(first.memory, first.clock, "c", min_nodes=1, max_nodes=2)
    lost.hear()
    assert lost.node.verdict(lost.clock.now()).outcome is Outcome.DRAINED
    lost.join()
    assert isinstance(lost.node.obstacle(lost.clock.now()), DrainedError)
    assert lost.state.round == last
    fresh.join()
    fresh.run(10.0)
    assert fresh.members == ["c/1"]
    lost.hear()
    assert lost.node.verdict(lost.clock.now()) is None
    assert isinstance(lost.node.obstacle(lost.clock.now()), DrainedError)
    assert fresh.members == ["c/1"]
