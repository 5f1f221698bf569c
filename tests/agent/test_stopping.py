from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.agent.stopping import Step, StopPlan
from elastic_core.clock import Instant

PLAN = StopPlan(begun=Instant(100.0), grace=30.0, patience=10.0)
KILLED = PLAN.after_kill(Instant(130.0))


@pytest.mark.parametrize(
    ("plan", "now", "urged", "step"),
    [
        (PLAN, 100.0, False, Step.WAIT),
        (PLAN, 129.9, False, Step.WAIT),
        (PLAN, 130.0, False, Step.KILL),
        (PLAN, 500.0, False, Step.KILL),  # the agent slept: SIGKILL and its patience still come before giving up
        (PLAN, 100.0, True, Step.KILL),
        (KILLED, 130.0, False, Step.KILL),  # again and again: the killed may have left children
        (KILLED, 139.9, True, Step.KILL),
        (KILLED, 140.0, False, Step.GIVE_UP),
        (KILLED, 140.0, True, Step.GIVE_UP),
    ],
)
def test_the_table(plan, now, urged, step):
    assert plan.step(Instant(now), urged) is step


def test_when_the_next_step_is_due():
    assert (PLAN.until, KILLED.until) == (130.0, 140.0)


def test_no_grace_kills_at_once():
    assert StopPlan(Instant(0.0), grace=0.0, patience=10.0).step(Instant(0.0), urged=False) is Step.KILL


@given(st.floats(0, 100), st.floats(0, 100), st.lists(st.tuples(st.floats(0, 60), st.booleans()), max_size=20))
def test_steps_never_go_back_and_giving_up_never_comes_early(grace, patience, moves):
    order = [Step.WAIT, Step.KILL, Step.GIVE_UP]
    plan, now, steps = StopPlan(Instant(0.0), grace, patience), Instant(0.0), [Step.WAIT]
    urged = False
    for pause, urge in moves:
        now, urged = Instant(now + pause), urged or urge
        steps.append(plan.step(now, urged))
        if steps[-1] is Step.KILL and plan.killed is None:
            plan = plan.after_kill(now)
        if steps[-1] is Step.GIVE_UP:
            assert now >= plan.killed + patience
    assert steps == sorted(steps, key=order.index)
