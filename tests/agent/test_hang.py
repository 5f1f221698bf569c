"""The table that finds hung workers, given samples and times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.agent.hang import HangPolicy
from elastic_core.clock import Instant
from elastic_core.interfaces.workers import Expiry, WorkerSample

POLICY = HangPolicy(8.0, warmup=0.0)
STEP = 2.0  # of POLICY


def sample(rank=0, **done):
    return WorkerSample(rank, 100 + rank, **done)


def follow(policy, *checks):
    """Check at the given times with the given samples; returns the result of the last check and the table."""
    table, found = policy.table(Instant(0.0)), None
    for now, *samples in checks:
        table, found = table.look(samples, Instant(now))
    return found, table


def idle_until(now, *last, policy=POLICY):
    """Checks at every step from 0 on, with the same samples each time."""
    return [(at * policy.step, *last) for at in range(int(now / policy.step) + 1)]


def test_idle_worker_hangs_after_the_timeout():
    assert follow(POLICY, *idle_until(6, sample()))[0] is None
    found, _ = follow(POLICY, *idle_until(8, sample()))
    assert found == Expiry(100, "", "no progress for 8 s (no log line, no CPU time, no beat)")


@pytest.mark.parametrize("done", [{"written": 1}, {"beats": 1}, {"cpu": 0.05}, {"held_up": True}])
def test_any_sign_counts_as_progress(done):
    checks = [*idle_until(6, sample()), (8.0, sample(**done))]
    found, table = follow(POLICY, *checks)
    assert found is None
    assert table.next_look == 10.0
    done.pop("held_up", None)
    assert follow(POLICY, *checks, *((at, sample(**done)) for at in (10.0, 12.0, 14.0)))[0] is None
    found, _ = follow(POLICY, *checks, *((at, sample(**done)) for at in (10.0, 12.0, 14.0, 16.0)))
    assert found is not None and found.late == 0


def test_cpu_time_of_idle_threads_is_not_progress():
    share = 0.019
    checks = [(at, sample(cpu=share * at)) for at in (0.0, 2.0, 4.0, 6.0, 8.0)]
    assert follow(POLICY, *checks)[0] is not None
    assert follow(POLICY, *[(at, sample(cpu=0.021 * at)) for at in (0.0, 2.0, 4.0, 6.0, 8.0)])[0] is None


def test_single_cpu_clock_tick_is_not_progress():
    policy = HangPolicy(0.4, warmup=0.0)
    checks = [(0.1 * n, sample(cpu=0.01 * n)) for n in range(5)]
    assert follow(policy, *checks)[0] is not None


def test_shrinking_cpu_time_is_not_progress():
    checks = [(0.0, sample(cpu=100.0)), (2.0, sample(cpu=1.0)), (4.0, sample(cpu=2.0)), (6.0, sample(cpu=2.0))]
    assert follow(POLICY, *checks)[0] is None
    assert follow(POLICY, *checks, (8.0, sample(cpu=2.0)), (10.0, sample(cpu=2.0)))[0] is None  # it made progress at 4
    assert follow(POLICY, *checks, *((at, sample(cpu=2.0)) for at in (8.0, 10.0, 12.0)))[0] is not None


def test_workers_are_not_checked_during_warmup():
    table = HangPolicy(8.0, warmup=60.0).table(Instant(5.0))
    assert table.next_look == 65.0
    table, found = table.look([sample()], Instant(65.0))
    assert found is None
    assert table.next_look == 67.0


def test_worker_that_stopped_first_is_the_cause():
    checks = [
        (0.0, sample(0), sample(1), sample(2)),
        (2.0, sample(0, written=1), sample(1, written=1), sample(2, written=1)),
        (4.0, sample(0, written=2), sample(1, written=1), sample(2, written=2)),
        *((at, sample(0, written=2), sample(1, written=1), sample(2, written=2)) for at in (6.0, 8.0)),
    ]
    found, _ = follow(POLICY, *checks, (10.0, sample(0, written=2), sample(1, written=1), sample(2, written=2)))
    assert found is not None and found.worker_pid == 101


def test_least_active_of_workers_stopped_together_is_the_cause():
    busy = (sample(0, cpu=1.5), sample(1, cpu=0.4), sample(2, cpu=1.9))
    checks = [(0.0, sample(0), sample(1), sample(2)), *((at, *busy) for at in (2.0, 4.0, 6.0, 8.0, 10.0))]
    found, _ = follow(POLICY, *checks)
    assert found is not None and found.worker_pid == 101


def test_suspended_agent_blames_no_worker():
    checks = [*idle_until(6, sample()), (600.0, sample())]
    found, table = follow(POLICY, *checks)
    assert found is None
    assert table.next_look == 602.0
    found, _ = follow(POLICY, *checks, (602.0, sample()))
    assert found is not None


def test_slightly_late_check_still_finds_the_hang():
    found, _ = follow(POLICY, *idle_until(6, sample()), (8.9, sample()))
    assert found is not None
    assert found.late == pytest.approx(0.9)


def test_replaced_worker_gets_a_new_timeout():
    other = WorkerSample(0, 999)
    assert follow(POLICY, *idle_until(6, sample()), (8.0, other))[0] is None


def test_ended_worker_is_forgotten():
    found, table = follow(POLICY, *idle_until(6, sample(0), sample(1)), (8.0, sample(1)))
    assert found is not None and found.worker_pid == 101
    assert set(table.rows) == {1}


def test_checks_continue_without_workers():
    assert follow(POLICY, (0.0,))[1].next_look == STEP


def test_reason_names_only_selected_signs():
    policy = HangPolicy(8.0, 0.0, ("log", "beat"))
    found, _ = follow(policy, *idle_until(8, sample()))
    assert found is not None and found.reason == "no progress for 8 s (no log line, no beat)"


@given(
    st.floats(0.1, 3600),
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=30),
)
def test_hang_is_found_within_1_to_1_25_timeouts(timeout, life):
    """The worker makes progress at random times; checks happen at the times the table asks for."""
    policy = HangPolicy(timeout, warmup=0.0)
    moves = []
    at = 0.0
    for gap, _ in life:
        at += gap * timeout * 0.99
        moves.append(at)
    table, found, now = policy.table(Instant(0.0)), None, 0.0
    while found is None:
        now = table.next_look
        written = sum(moved <= now for moved in moves)
        table, found = table.look([sample(written=written)], Instant(now))
        assert table.next_look > now
    last = moves[-1] if moves else 0.0
    assert last + timeout <= now * (1 + 1e-9) + 1e-9
    assert now <= last + 1.25 * timeout * (1 + 1e-9)


def spinning(since, until, start=0.0):
    """Checks of a worker that uses a whole core and, until `since`, writes a line before each check."""
    times = [start + STEP * number for number in range(int((until - start) / STEP) + 1)]
    return [(at, sample(cpu=at, written=min(at, since))) for at in times]


def test_spinning_worker_that_logged_regularly_is_found():
    assert follow(POLICY, *spinning(since=10.0, until=16.0))[0] is None
    found, _ = follow(POLICY, *spinning(since=10.0, until=18.0))
    assert found == Expiry(100, "", "no progress for 8 s (no log line, no beat)")


def test_spinning_worker_with_few_early_lines_is_busy():
    assert follow(POLICY, *spinning(since=6.0, until=60.0))[0] is None


def test_rare_lines_do_not_make_a_busy_worker_regular():
    checks = [(at, sample(cpu=at, written=at // 10)) for at in (STEP * number for number in range(40))]
    silent = [(at, sample(cpu=at, written=100)) for at in (80.0 + STEP * number for number in range(20))]
    assert follow(POLICY, *checks, *silent)[0] is None


def test_spinning_worker_with_regular_heartbeats_is_found():
    checks = [(at, sample(cpu=at, beats=min(at, 10))) for at in (STEP * number for number in range(10))]
    assert follow(POLICY, *checks)[0] is not None


def test_replaced_worker_has_to_become_regular_again():
    fresh = [(at, WorkerSample(0, 999, cpu=at)) for at in (12.0 + STEP * number for number in range(20))]
    assert follow(POLICY, *spinning(since=10.0, until=10.0), *fresh)[0] is None
