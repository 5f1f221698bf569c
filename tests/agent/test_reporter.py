"""The log states each failure once."""

from __future__ import annotations

import pytest

from elastic_core.agent.interface import WorkerState
from elastic_core.agent.reporter import Reporter
from elastic_core.errors import HANG, ProcessFailure
from elastic_core.interfaces.observer import AgentFinished, WorkerFailed
from elastic_core.testing.fakes import FakeClock


@pytest.fixture
def facts():
    return []


@pytest.fixture
def reporter(facts):
    return Reporter("job7", facts.append, FakeClock())


def failure(reason, rank=1):
    return {rank: ProcessFailure(rank, 100 + rank, 1, global_rank=rank, round=2, reason=reason)}


def test_last_line_does_not_repeat_a_logged_failure(reporter, facts, capsys):
    from elastic_core import log

    log.configure(level="info")
    reporter.failures(failure("exit code 1"))
    reporter.finished(WorkerState.FAILED, "rank 1: exit code 1; all 3 restarts are used", restarts=3)
    failed, finished = (line.partition(" ")[2].strip() for line in capsys.readouterr().err.splitlines())
    log.configure(level="warning")
    assert failed == 'error    worker failed: rank=1 pid=101 round=2 reason="exit code 1"'
    assert finished == 'info     agent finished: state=FAILED restarts=3 reason="all 3 restarts are used"'
    assert facts[1].reason == "rank 1: exit code 1; all 3 restarts are used"
    assert isinstance(facts[1], AgentFinished)


def test_hang_is_logged_when_it_is_found_and_not_again(reporter, facts, capsys):
    reporter.failures(failure(HANG + "no progress for 3 s"))
    assert "worker failed" not in capsys.readouterr().err
    assert isinstance(facts[0], WorkerFailed)
