from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.agent.stopping import Step, StopPlan
from elastic_core.clock import Instant

PLAN = StopPlan(Instant(100.0), grace=30.0, patience=10.0)
KILLED = PLAN.at(Instant(130.0), urged=False)
ALL_KILLED = KILLED.at(KILLED.until, urged=False)


@pytest.mark.parametrize(
    ("plan", "now", "urged", "step"),
    [
        (PLAN, 100.0, False, Step.ASK),
        (PLAN, 129.9, False, Step.ASK),
        (PLAN, 130.0, False, Step.KILL),
        (PLAN, 500.0, False, Step.KILL),  # the agent slept: all steps and their times still come before giving up
        (PLAN, 100.0, True, Step.KILL),
        (KILLED, 130.0, False, Step.KILL),  # again and again: the killed may have left children
        (KILLED, 131.9, True, Step.KILL),
        (KILLED, 132.0, False, Step.KILL_HELPERS),
        (KILLED, 500.0, False, Step.KILL_HELPERS),
        (ALL_KILLED, 139.9, True, Step.KILL_HELPERS),
        (ALL_KILLED, 140.0, False, Step.GIVE_UP),
        (ALL_KILLED, 140.0, True, Step.GIVE_UP),
    ],
)
def test_the_table(plan, now, urged, step):
    assert plan.at(Instant(now), urged).step is step


def test_when_the_next_step_is_due():
    assert (PLAN.until, KILLED.until, ALL_KILLED.until) == (130.0, 132.0, 140.0)


def test_little_patience_is_shared_with_helpers():
    killed = StopPlan(Instant(0.0), grace=0.0, patience=1.0).at(Instant(0.0), urged=False)
    assert (killed.step, killed.until) == (Step.KILL, 0.5)
    assert killed.at(Instant(0.5), urged=False).until == 1.0


@given(st.floats(0, 100), st.floats(0, 100), st.lists(st.tuples(st.floats(0, 60), st.booleans()), max_size=20))
def test_steps_never_go_back_and_none_is_left_out(grace, patience, moves):
    plan, now, urged = StopPlan(Instant(0.0), grace, patience), Instant(0.0), False
    plans = [plan]
    for pause, urge in moves:
        now, urged = Instant(now + pause), urged or urge
        plans.append(plans[-1].at(now, urged))
    order = list(Step)
    places = [order.index(plan.step) for plan in plans]
    assert all(after - before in (0, 1) for before, after in itertools.pairwise(places))
    at = {plan.step: plan.since for plan in reversed(plans)}
    if Step.GIVE_UP in at:
        assert at[Step.GIVE_UP] >= at[Step.KILL] + patience - 1e-9
