"""An unmodified script that uses torch's timers, and a program for torch's classes."""

import inspect
from importlib import import_module
from pathlib import Path

import elastic_file_timer
import pytest

import elastic_core.watchdog

pytestmark = pytest.mark.torch

LIMIT_S = 60
SCRIPT = """
import os, sys, time
import torch.distributed.elastic.timer as timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
for step in range(50):
    with timer.expires(after=60):
        pass
print("done", flush=True)
with timer.expires(after=0.2, scope="last"):
    sys.stdin.read()
"""


def test_torchs_client_works_with_our_server(make_server, start_process, expiry_log, tmp_path):
    server = make_server(run_id="job", max_interval=60)
    server.start(expiry_log)
    process = start_process(SCRIPT, TORCHELASTIC_TIMER_FILE=str(tmp_path / "timers"), TORCHELASTIC_RUN_ID="job")
    assert process.stdout.readline() == "done\n", process.communicate("", timeout=LIMIT_S)
    assert expiry_log.scopes() == []
    (expiry,) = expiry_log.expiries()
    assert expiry.worker_pid == process.pid
    assert 0 <= expiry.late < 20  # less than the interval
    assert (server.taken, server.refused) == (101, {})


def test_torchs_expires_works_with_our_client(make_server, start_process, expiry_log, tmp_path):
    make_server().start(expiry_log)
    script = SCRIPT.replace("timer.FileTimerClient", "__import__('elastic_file_timer').FileTimerClient")
    process = start_process(script, TORCHELASTIC_TIMER_FILE=str(tmp_path / "timers"))
    assert process.stdout.readline() == "done\n", process.communicate("", timeout=LIMIT_S)
    assert expiry_log.scopes() == []


@pytest.mark.parametrize("place", ["", ".local_timer", ".file_based_local_timer"])
def test_our_classes_accept_the_arguments_of_torchs(place):
    theirs = import_module("torch.distributed.elastic.timer" + place)
    watchdog = elastic_core.watchdog
    ours = {
        **{name: getattr(watchdog, name) for name in watchdog.__all__},
        **{name: getattr(elastic_file_timer, name) for name in FILE},
    }
    for name in getattr(theirs, "__all__", ["TimerServer", "TimerClient", *FILE]):
        wanted, found = (arguments(each) for each in (getattr(theirs, name), ours[name]))
        assert found[: len(wanted)] == wanted, name
        assert all(default is not inspect.Parameter.empty for _, default in found[len(wanted) :]), name


FILE = ("FileTimerClient", "FileTimerRequest", "FileTimerServer")


def arguments(of):
    return [(each.name, each.default) for each in inspect.signature(of).parameters.values()]


PROGRAM = (Path(__file__).parent / "torch_timers.py").read_text()
IMPORTS = {
    "from torch.distributed.elastic import timer\n": "from elastic_core import watchdog as timer\n",
    "from torch.distributed.elastic.timer import FileTimer": "from elastic_file_timer import FileTimer",
    "from torch.distributed.elastic.timer.file_based_local_timer import": "from elastic_file_timer import",
    "from torch.distributed.elastic.timer.local_timer import": "from elastic_core.watchdog import",
}


def output_lines(process):
    out, errors = process.communicate(timeout=2 * LIMIT_S)
    assert process.returncode == 0, errors
    return out.splitlines()


def test_program_for_torchs_classes_runs_with_ours(start_process, tmp_path):
    for name in ("theirs", "ours"):
        (tmp_path / name).mkdir()
    theirs = start_process(PROGRAM, tmp_path / "theirs")
    program = PROGRAM
    for line, instead in IMPORTS.items():
        assert program.count(line) == 1, line
        program = program.replace(line, instead)
    assert "torch" not in program.partition("\nLIMIT_S")[0].partition("import")[2]
    ours = output_lines(start_process(program, tmp_path / "ours"))
    assert ours == output_lines(theirs)
    assert "hangs in a function -9" in ours  # it ran to the end
    assert "hangs -15" in ours
