"""Exits become failures, without real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.interfaces.workers import WorkerExit, WorkerRanks
from elastic_core.workers.failure import (
    Evidence,
    curable,
    decode_exit,
    describe,
    error_message,
    explain,
    in_causal_order,
    read_error_file,
)
from elastic_core.workers.process import REAPED_BY_OTHERS

OOM = "counted"


@pytest.mark.parametrize(
    ("exitcode", "oom", "words"),
    [
        (0, "", "exit code 0"),
        (3, "", "exit code 3"),
        (3, OOM, "exit code 3"),
        (-signal.SIGSEGV, "", "killed by SIGSEGV (Segmentation fault)"),
        (-signal.SIGSEGV, OOM, "killed by SIGSEGV (Segmentation fault)"),
        (-signal.SIGKILL, "", "killed by SIGKILL (Killed)"),
        (-signal.SIGKILL, OOM, "killed by SIGKILL: out of memory (counted)"),
        (-(signal.SIGRTMIN + 2), "", f"killed by signal {signal.SIGRTMIN + 2} (Real-time signal 2)"),
    ],
)
def test_exit_is_described_in_words(exitcode, oom, words):
    assert decode_exit(exitcode, oom) == words


@pytest.mark.parametrize("number", [33, 32])
def test_unnamed_signal_is_described_by_number(number):
    assert decode_exit(-number).startswith(f"killed by signal {number}")


def test_lost_exit_code_is_curable_failure_without_number():
    assert "exit code lost" in decode_exit(REAPED_BY_OTHERS)
    assert curable(REAPED_BY_OTHERS, ())


def run_python(*args, cwd=None):
    options = ["-I"] if cwd is None else ["-s", "-E"]  # so that modules in that folder are found
    done = subprocess.run([sys.executable, *options, *args], capture_output=True, text=True, cwd=cwd)
    return done.returncode, tuple(line for line in done.stderr.splitlines() if line.strip())


@pytest.mark.integration
@pytest.mark.parametrize("code", ["  x = 1\n y = 2\n", "if True:\n\tx = 1\n        y = 2\n"])
def test_syntax_error_is_incurable(tmp_path, code):
    (tmp_path / "script.py").write_text(code)
    assert not curable(*run_python(str(tmp_path / "script.py")))


BROKEN = {
    "broken.py": "def f(:\n",
    "bad_bytes.py": b"# \xff\n",
    "main/__main__.py": "x x\n",
    "main/__init__.py": "",
    "package/__init__.py": "x x\n",
    "package/train.py": "",
    "imports.py": "import broken\n",
    "imports_by_name.py": "import importlib\nimportlib.import_module('broken')\n",
    "imports_deep_down.py": "def f(n):\n  if n: f(n - 1)\n  else: import broken\nf(1)\nf(40)\n",
    "evaluates.py": "import ast\nast.literal_eval('[1, 2')\n",
    "executes.py": "exec('a b')\n",
    "raises.py": "raise SyntaxError('a reply that makes no sense')\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, content in BROKEN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path


@pytest.mark.integration
@pytest.mark.parametrize(
    "command",
    ["broken.py", "-m broken", "bad_bytes.py", "main", "-m main", "-m package.train", "-c if"],
)
def test_script_python_refuses_to_run_is_incurable(folder, command):
    exitcode, tail = run_python(*command.split(), cwd=folder)
    assert "SyntaxError: " in tail[-1]
    assert not curable(exitcode, tail)


@pytest.mark.integration
@pytest.mark.parametrize(
    "command",
    [
        *("imports.py", "-m imports", "imports_by_name.py", "imports_deep_down.py"),
        *("evaluates.py", "-m evaluates", "executes.py", "raises.py"),
    ],
)
def test_syntax_error_at_run_time_is_curable(folder, command):
    exitcode, tail = run_python(*command.split(), cwd=folder)
    assert "SyntaxError: " in tail[-1]
    assert curable(exitcode, tail)
    assert curable(exitcode, tail[-20:])


def test_syntax_error_of_another_program_is_curable():
    assert curable(1, ("node: starting", "SyntaxError: Unexpected token < in JSON at position 0"))


@pytest.mark.integration
def test_missing_script_is_incurable(tmp_path):
    (tmp_path / "empty").mkdir()
    assert not curable(*run_python(str(tmp_path / "missing.py")))
    assert not curable(*run_python(str(tmp_path / "empty")))


@pytest.mark.integration
@pytest.mark.parametrize("module", ["no_such_module_at_all", "no_such.module", "json.no_such", "json.nothing.deep"])
def test_missing_module_is_incurable(module):
    assert not curable(*run_python("-m", module))


@pytest.mark.integration
@pytest.mark.parametrize("prog", ["train.py", "train.py sub", "python -m train"])
def test_argparse_error_is_incurable(tmp_path, prog):
    (tmp_path / "s.py").write_text(f"import argparse\nargparse.ArgumentParser(prog={prog!r}).parse_args()\n")
    assert not curable(*run_python(str(tmp_path / "s.py"), "--no-such-flag"))


@pytest.mark.integration
def test_argparse_error_without_usage_in_tail_is_incurable(tmp_path):
    flags = "".join(f"parser.add_argument('--flag-number-{n}', metavar='VALUE')\n" for n in range(300))
    (tmp_path / "s.py").write_text(f"import argparse\nparser = argparse.ArgumentParser()\n{flags}parser.parse_args()\n")
    exitcode, tail = run_python(str(tmp_path / "s.py"), "--no-such-flag")
    assert not any(line.startswith("usage") for line in tail[-20:])
    assert not curable(exitcode, tail[-20:])


@pytest.mark.integration
def test_click_usage_error_is_incurable():
    tail = ("Usage: train.py [OPTIONS]", "Try 'train.py --help' for help.", "Error: No such option: --x")
    assert not curable(2, tail)
    assert curable(1, tail)
    assert curable(2, tail[1:])


@pytest.mark.parametrize(
    ("exitcode", "tail"),
    [
        (1, ()),
        (2, ()),
        (1, ("RuntimeError: boom",)),
        (1, ("Traceback (most recent call last):", "ModuleNotFoundError: No module named 'x'")),
        (1, ("SyntaxError: invalid syntax", "and then something else failed")),
        (2, ("RuntimeError: boom",)),
        (2, ("srun: error: n1: task 0: Exited with exit code 2",)),
        (2, ("rsync: error: some files could not be transferred",)),
        (2, ("/usr/bin/python: can't open file '/nfs/train.py': [Errno 116] Stale file handle",)),
        (2, ("/usr/bin/python: can't open file '/nfs/train.py': [Errno 13] Permission denied",)),
        (2, ("file.c:3:1: error: expected ';'",)),
        (3, ("train.py: error: no",)),
        (-signal.SIGSEGV, ("SyntaxError: no",)),
        (-signal.SIGKILL, ()),
    ],
)
def test_ordinary_failures_are_curable(exitcode, tail):
    assert curable(exitcode, tail)


# -- error files


@pytest.fixture
def error_file(tmp_path):
    def error_file(content):
        path = tmp_path / "error.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return read_error_file(path)

    return error_file


def test_error_file_in_torch_format_is_read(error_file):
    extra = {"py_callstack": "Traceback\n  deep\nValueError: no\n", "timestamp": "1"}
    data = error_file({"message": {"message": "ValueError: no", "extraInfo": extra}})
    assert error_message(data) == "Traceback\n  deep\nValueError: no"
    assert data["message"]["extraInfo"]["timestamp"] == "1"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"message": "plain text"}, "plain text"),
        ({"message": {"message": "short", "extraInfo": {"py_callstack": ""}}}, "short"),
        ({"message": {"message": "short", "extraInfo": "odd"}}, "short"),
        ({"message": {"message": "short"}}, "short"),
        ({"message": {"message": None}}, ""),
        ({"message": {}}, ""),
        ({"message": None}, ""),
        ({"message": 7}, "7"),
        ({"other": 1}, ""),
        (b'{"message": "cut of', '{"message": "cut of'),
        (b"\xff\xfe no json", "�� no json"),
        (b"[" * 100_000, "[" * 100_000),
        (b"[" * 600 + b"]" * 600, "the error file is nested deeper than 50 levels and was not read"),
        (b'{"message": ' + b"[" * 48 + b"]" * 48 + b"}", "[" * 48 + "]" * 48),
        (b"", "the error file is empty; perhaps the disk is full"),
        (["a", 1], "['a', 1]"),
        ("just text", "just text"),
        (None, "None"),
    ],
)
def test_malformed_error_file_yields_readable_message(error_file, content, message):
    assert error_message(error_file(content)) == message


def test_oversized_error_file_is_not_read(error_file):
    assert "longer than 1048576 bytes" in error_message(error_file(b"x" * (1024 * 1024 + 1)))
    assert error_message(error_file(b"x" * (1024 * 1024))) == "x" * (1024 * 1024)


def test_nan_and_infinity_in_error_file_become_text(error_file):
    data = error_file(b'{"message": "no", "loss": NaN, "more": [Infinity, -Infinity, 1e999, 1.5]}')
    assert data == {"message": "no", "loss": "NaN", "more": ["Infinity", "-Infinity", "1e999", 1.5]}


def test_missing_error_file_is_empty(tmp_path):
    assert read_error_file(tmp_path / "missing") == {}


def test_non_regular_error_file_is_described_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    found = {name: error_message(read_error_file(tmp_path / name)) for name in ("pipe", "link", "socket")}
    found["device"] = error_message(read_error_file(Path("/dev/zero")))
    assert found["pipe"] == "the error file is a named pipe and was not read"
    assert found["device"] == "the error file is a device and was not read"
    assert found["link"] == "the error file is a link and was not read"
    assert "cannot be read: " in found["socket"]
    assert error_message(read_error_file(tmp_path)) == "the error file is a folder and was not read"


# -- the failures of a round


def evidence(local, exitcode, stopped=False, **changes):
    fields = {
        "exit": WorkerExit(local, 100 + local, exitcode, obeyed=stopped),
        "ranks": WorkerRanks(local, 10 + local, local),
        "tail": (f"last line of {local}",),
        "error_file": f"/e/{local}",
        "error_data": {},
        "timestamp": 5.0,
    }
    return Evidence(**{**fields, **changes})


def test_failure_record_has_all_fields(plan):
    made = plan(node="n1", round=3, role="trainer")
    found = describe(evidence(2, 3), made)
    assert (found.local_rank, found.global_rank, found.pid, found.exitcode) == (2, 12, 102, 3)
    assert (found.node, found.round, found.role, found.timestamp) == ("n1", 3, "trainer", 5.0)
    assert (found.reason, found.message, found.error_file) == ("exit code 3", "last line of 2", "<N/A>")
    assert found.stderr_tail == ("last line of 2",)
    assert found.curable


def test_error_file_takes_precedence_over_stderr(plan):
    found = describe(evidence(0, 1, error_data={"message": "from the file"}), plan())
    assert (found.message, found.error_file) == ("from the file", "/e/0")
    assert found.error_file_data == {"message": "from the file"}


def test_reason_of_deliberate_kill_overrides_the_signal(plan):
    assert describe(evidence(0, -9, fault="hang", out_of_memory=OOM), plan()).reason == "hang"


def test_later_failures_are_caused_by_the_first(plan):
    found = explain([evidence(3, 0), evidence(2, 1), evidence(0, -6), evidence(1, -15, stopped=True)], plan(4))
    assert list(found) == [12, 10]
    assert found[12].caused_by is None
    assert found[10].caused_by == 12


def error_written(at):
    """The content of an error file written by `@record`."""
    extra = {"py_callstack": "ValueError: no samples", "timestamp": str(at)}
    return {"error_data": {"message": {"message": "no samples", "extraInfo": extra}}}


@pytest.mark.parametrize(
    ("evidences", "cause"),
    [
        ([evidence(1, 1, timestamp=20.0), evidence(0, -15, stopped=True, timestamp=21.0, **error_written(10))], 10),
        ([evidence(1, -6, timestamp=20.0), evidence(0, -15, stopped=True, timestamp=21.0, **error_written(10))], 10),
        (
            [
                evidence(1, 1, timestamp=20.0, **error_written(19)),
                evidence(0, -9, stopped=True, timestamp=21.0, **error_written(10)),
            ],
            10,
        ),
        (
            [evidence(1, 1, timestamp=20.0, **error_written(19)), evidence(0, 1, timestamp=20.0, **error_written(10))],
            10,
        ),
        ([evidence(1, 1, timestamp=20.0, **error_written(9)), evidence(0, 1, timestamp=20.0, **error_written(10))], 11),
        ([evidence(1, -6, timestamp=20.0), evidence(0, 1, timestamp=40.0, **error_written(10))], 10),
        ([evidence(1, -9, timestamp=20.0), evidence(0, 1, timestamp=21.0, **error_written(19))], 11),
        ([evidence(1, -9, timestamp=30.0), evidence(0, 1, timestamp=30.0, **error_written(20))], 11),
        ([evidence(1, 1, timestamp=20.0, **error_written(19)), evidence(0, 1, timestamp=20.1)], 11),
        ([evidence(1, -9, timestamp=60.0, fault="hang"), evidence(0, 1, timestamp=61.0, **error_written(30))], 11),
    ],
    ids=[
        "it was stopped while it ended",
        "the other one aborted, and it was stopped",
        "the other one has recorded a later error, and it was stopped",
        "it ended later",
        "it ended first",
        "the other one aborted in reaction",
        "it reacted to a kill",
        "both exits were noticed late",
        "the other one left no file",
        "it gave up on a hung worker",
    ],
)
def test_cause_is_first_error_not_first_exit(plan, evidences, cause):
    found = explain(evidences, plan(2))
    assert [failure.caused_by for failure in found.values()] == [None, cause]
    assert next(iter(found)) == cause


@pytest.mark.parametrize("timestamp", ["soon", "-5", "9" * 400, None, 7.5])
def test_invalid_error_file_timestamp_is_ignored(timestamp):
    assert evidence(0, 1, error_data={"message": {"extraInfo": {"timestamp": timestamp}}}).error_at == 0.0
    assert evidence(0, 1, error_data={"message": {"extraInfo": [timestamp]}}).error_at == 0.0


def test_error_before_stop_is_reported_as_failure(plan):
    (found,) = explain([evidence(0, -15, stopped=True, **error_written(10))], plan()).values()
    assert found.reason == "had already failed when the agent stopped it"
    assert found.message == "ValueError: no samples"


def test_unreadable_error_file_of_a_stopped_worker_proves_no_failure(plan, tmp_path):
    (tmp_path / "file").write_text("in place of a folder")
    for path in (tmp_path, tmp_path / "file" / "error.json"):
        data = read_error_file(path)
        assert "read" in data["message"]
        assert explain([evidence(0, -15, stopped=True, error_data=data)], plan()) == {}
        assert explain([evidence(0, 3, error_data=data)], plan()).keys() == {10}


def test_workers_stopped_on_request_have_not_failed(plan):
    assert explain([evidence(0, -15, stopped=True), evidence(1, 0)], plan(2)) == {}
    assert explain([], plan()) == {}


TRACEBACK = ("Traceback (most recent call last):", '  File "train.py", line 7, in <module>', "    step()")


@pytest.mark.parametrize(
    ("tail", "is_reported"),
    [
        ((*TRACEBACK, "ValueError: a bad batch"), True),
        (("step 3", *TRACEBACK, "mine.Stop"), True),
        ((*TRACEBACK, "ValueError: a bad batch", "trying again"), False),
        ((*TRACEBACK, "KeyboardInterrupt"), False),  # caused by our SIGINT
        (("ValueError: a bad batch",), False),
        ((), False),
    ],
)
def test_traceback_of_stopped_worker_is_reported(plan, tail, is_reported):
    """Rank 0 raised and is waiting in an exit handler; rank 1 lost its peer and exited first."""
    found = explain([evidence(1, 1), evidence(0, -15, stopped=True, tail=tail)], plan(2))
    assert list(found) == ([11, 10] if is_reported else [11])
    assert found[11].caused_by is None
    if is_reported:
        assert found[10].message == "\n".join(tail)


exits = st.lists(st.tuples(st.integers(0, 64), st.integers(-64, 255)), unique_by=lambda pair: pair[0])


@given(exits)
def test_causal_order_is_a_permutation_with_signals_first(pairs):
    before = [WorkerExit(local, local + 1, code) for local, code in pairs]
    after = in_causal_order(before)
    assert sorted(after, key=hash) == sorted(before, key=hash)
    signalled = [ended.exitcode < 0 for ended in after]
    assert signalled == sorted(signalled, reverse=True)
    for kind in (True, False):
        ranks = [ended.local_rank for ended in after if (ended.exitcode < 0) is kind]
        assert ranks == sorted(ranks)
