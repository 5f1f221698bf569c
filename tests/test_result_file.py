from __future__ import annotations

import json
import os
import stat

import pytest

from elastic_core import report
from elastic_core.errors import ChildFailedError, ConfigurationError, ProcessFailure, UnkillableWorkersError
from elastic_core.interfaces.node import Round
from elastic_core.interfaces.observer import AgentFinished, RoundFormed, WorkersStarted
from elastic_core.observers import History

FAILURE = ProcessFailure(1, 77, -9, global_rank=1, reason="killed by SIGKILL", stderr_tail=("last",))


@pytest.fixture
def history():
    history = History()
    history(RoundFormed("job", 1, 0, 1, 0.1, Round(1, ())))
    history(WorkersStarted("job", 1, {0: 76, 1: 77}))
    return history


def finish(history, state="SUCCEEDED", reason="every worker succeeded"):
    history(AgentFinished("job", state, reason, 2))
    return history


def test_success_is_written(history):
    content = report.outcome("job", 0, None, finish(history))
    assert (content["version"], content["run_id"], content["restart_count"]) == (1, "job", 2)
    assert (content["state"], content["exit_code"]) == ("SUCCEEDED", 0)
    assert (content["reason"], content["error"], content["first_failure"]) == ("every worker succeeded", None, None)


def test_failure_is_written(history):
    error = ChildFailedError("train.py", {1: FAILURE})
    content = report.outcome("job", 1, error, finish(history, "FAILED", "no restart is allowed"))
    assert (content["state"], content["exit_code"], content["reason"]) == ("FAILED", 1, "no restart is allowed")
    assert content["error"] == {"type": "ChildFailedError", "message": "train.py failed: rank 1: killed by SIGKILL"}
    assert (content["first_failure"]["signal"], content["first_failure"]["stderr_tail"]) == ("SIGKILL", ["last"])


def test_unkillable_workers_do_not_hide_failures(history):
    error = UnkillableWorkersError("left behind")
    error.failures = {1: FAILURE}
    assert report.outcome("job", 6, error, history)["first_failure"]["global_rank"] == 1


def test_run_that_never_started_has_failed():
    content = report.outcome("job", 2, ConfigurationError(), History())
    assert (content["state"], content["restart_count"], content["rounds"]) == ("FAILED", 0, [])
    assert content["error"]["type"] == "ConfigurationError"


def test_file_is_replaced_atomically(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")
    with path.open() as reader:
        report.write_result(path, {"version": 1})
        assert reader.read() == "old"  # an open file keeps the complete old content
    assert json.loads(path.read_text()) == {"version": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_failed_write_leaves_only_the_old_file(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")
    circular = []
    circular.append(circular)
    with pytest.raises(ValueError, match="Circular"):
        report.write_result(path, {"version": circular})
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("result.json", "old")]


def test_non_json_numbers_become_text(tmp_path):
    path = tmp_path / "result.json"
    data = {"loss": float("nan"), "norms": [float("inf"), -float("inf"), 1e300]}
    report.write_result(path, {"first_failure": ProcessFailure(0, 7, 1, error_file_data=data).as_dict()})

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    content = json.loads(path.read_text(), parse_constant=refuse)
    assert content["first_failure"]["error_file_data"] == {"loss": "NaN", "norms": ["Infinity", "-Infinity", 1e300]}


def test_symbolic_link_is_kept(tmp_path):
    target, link = tmp_path / "kept" / "result.json", tmp_path / "latest.json"
    target.parent.mkdir()
    link.symlink_to(target)
    report.check_writable(link)
    report.write_result(link, {"version": 1})
    assert link.is_symlink()
    assert json.loads(target.read_text()) == {"version": 1}


def test_pipe_or_device_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        report.check_writable(pipe)
        report.write_result(pipe, {"version": 1})
        assert json.loads(os.read(reader, 4096)) == {"version": 1}
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["new.json", "old.json"])
def test_writable_path_is_accepted(name, tmp_path):
    (tmp_path / "old.json").write_text("old")
    report.check_writable(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "found"),
    [("no/such/result.json", "no such folder"), ("folder", "not a writable file")],
)
def test_unwritable_path_is_an_error(name, found, tmp_path):
    (tmp_path / "folder").mkdir()
    path = tmp_path / name
    with pytest.raises(ConfigurationError) as refused:
        report.check_writable(path)
    assert str(refused.value) == f"--result-file: cannot write to {path}: {found}; choose another file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="not a writable file"):
        report.check_writable(tmp_path / "result.json")
