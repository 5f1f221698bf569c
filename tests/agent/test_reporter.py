"""The log states each failure once."""

from __future__ import annotations

import pytest
from elastic_testing.fakes import FakeClock

from elastic_core import log
from elastic_core.agent.interface import WorkerState
from elastic_core.agent.reporter import Reporter
from elastic_core.errors import HANG, ProcessFailure
from elastic_core.interfaces.observer import AgentFinished, WorkerFailed


@pytest.fixture
def facts():
    return []


@pytest.fixture
def reporter(facts):
    return Reporter("job7", facts.append, FakeClock())


def failure(reason, rank=1):
    return {rank: ProcessFailure(rank, 100 + rank, 1, global_rank=rank, round=2, reason=reason)}


@pytest.fixture
def logged(capsys):
    """A function that returns the lines logged so far without their times."""
    log.configure(level="info")
    yield lambda: [line.partition(" ")[2].strip() for line in capsys.readouterr().err.splitlines()]
    log.configure(level="warning")


def test_last_log_line_does_not_repeat_the_failure(reporter, facts, logged):
    reporter.failures(failure("exit code 1"))
    reporter.finished(WorkerState.FAILED, "rank 1: exit code 1; all 3 restarts have been used", restarts=3)
    assert logged() == [
        'error    worker failed: rank=1 pid=101 round=2 reason="exit code 1"',
        "info     agent finished: state=FAILED restarts=3",
    ]
    assert facts[1].reason == "rank 1: exit code 1; all 3 restarts have been used"
    assert isinstance(facts[1], AgentFinished)


def test_hang_is_not_logged_again_as_a_failure(reporter, facts, logged):
    reporter.failures(failure(HANG + "no progress for 3 s"))
    reporter.failures(failure("exit code 1"))
    assert logged() == ['error    worker failed: rank=1 pid=101 round=2 reason="exit code 1"']
    assert [type(fact) for fact in facts] == [WorkerFailed, WorkerFailed]
