from __future__ import annotations

import json
import pickle
import signal
from datetime import datetime

import pytest

from elastic_core import errors
from elastic_core.errors import (
    ChildFailedError,
    ConfigurationError,
    ElasticError,
    PluginError,
    Problem,
    ProcessFailure,
    SignalException,
)


def failure(rank, **fields):
    return ProcessFailure(**{"local_rank": rank, "pid": 100 + rank, "exitcode": 3, "global_rank": rank, **fields})


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ElasticError, 70),
        (errors.ConfigurationError, 2),
        (errors.PluginError, 2),
        (errors.RendezvousError, 7),
        (errors.RendezvousStateError, 7),
        (errors.RendezvousTimeoutError, 3),
        (errors.RendezvousConnectionError, 4),
        (errors.RendezvousClosedError, 5),
        (errors.RendezvousGracefulExitError, 0),
        (errors.UnkillableWorkersError, 6),
        (errors.ChildFailedError, 1),
    ],
)
def test_each_error_has_its_exit_code(error, code):
    assert error.exit_code == code
    assert issubclass(error, ElasticError)


def test_configuration_error_has_every_problem():
    first, second = Problem("--nnodes", "expected a number"), Problem("elastic.toml: role", "empty")
    error = ConfigurationError(first, second)
    assert error.problems == (first, second)
    assert str(error) == "--nnodes: expected a number\nelastic.toml: role: empty"
    assert isinstance(PluginError(first), ConfigurationError)


@pytest.mark.parametrize(
    ("exitcode", "name"), [(3, "<N/A>"), (0, "<N/A>"), (-9, "SIGKILL"), (-11, "SIGSEGV"), (-50, "signal 50")]
)
def test_signal_name_of_an_exit_code(exitcode, name):
    assert failure(0, exitcode=exitcode).signal_name() == name


def test_failure_as_json():
    as_dict = failure(1, exitcode=-9, stderr_tail=("a", "b"), error_file_data={"message": "no"}).as_dict()
    assert json.loads(json.dumps(as_dict)) == as_dict
    assert (as_dict["signal"], as_dict["stderr_tail"], as_dict["global_rank"]) == ("SIGKILL", ["a", "b"], 1)
    assert failure(1).as_dict()["signal"] is None


def test_first_failure_is_a_cause_not_an_effect():
    error = ChildFailedError("train.py", {0: failure(0, timestamp=1.0, caused_by=2), 2: failure(2, timestamp=5.0)})
    assert error.get_first_failure() == (2, error.failures[2])


def test_earliest_cause_then_lowest_rank_is_first():
    late, early, same = failure(0, timestamp=9.0), failure(2, timestamp=1.0), failure(1, timestamp=1.0)
    assert ChildFailedError("train.py", {0: late, 2: early, 1: same}).get_first_failure() == (1, same)


def test_effects_alone_have_a_first_failure():
    assert ChildFailedError("x", {3: failure(3, caused_by=0)}).get_first_failure()[0] == 3


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "train.py failed: rank 1: exit code 3"),
        ({"reason": "killed by SIGKILL", "node": "node7"}, "train.py failed: rank 1 on node7: killed by SIGKILL"),
    ],
)
def test_message_of_a_failed_job(fields, text):
    error = ChildFailedError("train.py", {1: failure(1, **fields)})
    assert error.summary == text
    assert str(error) == error.format_msg()


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError(Problem("--a", "expected b"), Problem("--c", "expected d")),
        SignalException("left", signal.SIGTERM),
        ChildFailedError("job", {1: ProcessFailure(1, 4711, -9, global_rank=1, reason="killed")}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_failure_as_json_is_a_shallow_copy():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert failure(0, error_file_data={"deep": deep}).as_dict()["error_file_data"]["deep"] is deep


def test_timestamp_format():
    moment = datetime(2026, 3, 4, 5, 6, 7)
    assert failure(0, timestamp=moment.timestamp() + 0.9).timestamp_isoformat() == "2026-03-04_05:06:07"


def test_report_lists_first_failure_first():
    cause = failure(2, timestamp=5.0, node="node7", reason="killed by SIGKILL", message="one\ntwo")
    error = ChildFailedError("train.py", {0: failure(0, timestamp=6.0), 1: failure(1, timestamp=6.0), 2: cause})
    lines = error.format_msg("#", "~").splitlines()
    assert set(lines[0]) == set(lines[-1]) == {"#"}
    assert lines[1] == "train.py failed: rank 2 on node7: killed by SIGKILL"
    assert [lines[n].split(" (")[0] for n in (3, 7, 9)] == ["root cause: rank 2", "rank 0", "rank 1"]
    assert lines[4:6] == ["  one", "  two"]
    assert {line for n, line in enumerate(lines) if n in (2, 6, 8)} == {"~" * len(lines[0])}
