from __future__ import annotations

import pytest

from elastic_core.agent import RestartBudget


def test_failures_use_the_budget_up():
    budget = RestartBudget(max_restarts=2)
    assert not budget.exhausted
    budget = budget.after_failure()
    assert (budget.failures, budget.exhausted) == (1, False)
    budget = budget.after_failure()
    assert (budget.failures, budget.exhausted) == (2, True)


def test_membership_changes_are_counted_and_cost_nothing():
    budget = RestartBudget(max_restarts=1).after_membership_change().after_membership_change()
    assert (budget.failures, budget.membership_changes, budget.exhausted) == (0, 2, False)


def test_an_empty_budget_cannot_be_spent():
    with pytest.raises(ValueError, match="expected restarts to be left, found all 0 used"):
        RestartBudget(max_restarts=0).after_failure()
