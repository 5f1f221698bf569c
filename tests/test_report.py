"""Golden texts of the reports of failed runs."""

from __future__ import annotations

import signal
import textwrap

import pytest

from elastic_core.errors import (
    ChildFailedError,
    ConfigurationError,
    DrainedError,
    Problem,
    ProcessFailure,
    RendezvousClosedError,
    RendezvousTimeoutError,
    SignalException,
    UnkillableWorkersError,
)
from elastic_core.report import as_text, exit_code_of, in_color


def failure(rank, **fields):
    usual = {"global_rank": rank, "node": "node7", "round": 2, "reason": "exit code 1"}
    return ProcessFailure(**{"local_rank": rank % 8, "pid": 100 + rank, "exitcode": 1, **usual, **fields})


def golden(text):
    return textwrap.dedent(text).strip("\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RendezvousTimeoutError(), 3),
        (ValueError(), 70),
        (SignalException("", signal.SIGTERM), 143),
        (SignalException("", signal.SIGINT), 130),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_code_follows_from_the_error(error, code):
    assert exit_code_of(error) == code


def test_single_configuration_problem_fits_on_one_line():
    error = ConfigurationError(Problem("--nnodes", "expected N or MIN:MAX, found 'x'"))
    assert as_text(error) == "elastic: --nnodes: expected N or MIN:MAX, found 'x'"


def test_several_configuration_problems_become_a_list():
    error = ConfigurationError(Problem("--nnodes", "expected a number"), Problem("ELASTIC_ROLE", "found nothing"))
    assert as_text(error, "job") == golden("""
        elastic: 2 problems with the configuration
          - --nnodes: expected a number
          - ELASTIC_ROLE: found nothing
        """)


def test_failure_report_has_error_file_and_later_failures():
    first = failure(
        9,
        local_rank=1,
        error_file="/tmp/e/rank-9.error.json",
        message="Traceback (most recent call last):\n  ...\nValueError: no such layer",
    )
    killed = failure(3, exitcode=-6, reason="killed by SIGABRT (Aborted)", message="x\nsocket closed", caused_by=9)
    silent = failure(1, caused_by=9)
    error = ChildFailedError("train.py", {1: silent, 3: killed, 9: first})
    assert as_text(error, "job", "all 3 restarts have been used (--max-restarts=3)") == golden("""
        elastic: job job failed: all 3 restarts have been used (--max-restarts=3)

        Root cause (round 2): rank 9 (local rank 1, pid 109) on node7: exit code 1
          error file /tmp/e/rank-9.error.json:
            Traceback (most recent call last):
              ...
            ValueError: no such layer
        Failed later, most likely as a consequence:
          rank 1 (local rank 1, pid 101) on node7: exit code 1
          rank 3 (local rank 3, pid 103) on node7: killed by SIGABRT (Aborted) | socket closed
        """)


def test_failure_with_stderr_tail():
    error = ChildFailedError("train.py", {0: failure(0, message="one\ntwo", node="")})
    assert as_text(error) == golden("""
        elastic: job failed

        Root cause (round 2): rank 0 (local rank 0, pid 100): exit code 1
          last lines of its stderr:
            one
            two
        """)


def test_report_of_a_hung_worker_has_its_stack():
    stack = 'Current thread 0x1 (most recent call first):\n  File "train.py", line 3 in step\n\nThread 0x2:\n  ...'
    hung = failure(0, reason="hang: no progress for 30 s (no log line)", message="step 7", stack=stack, exitcode=-6)
    assert as_text(ChildFailedError("train.py", {0: hung}), "job") == golden("""
        elastic: job job failed

        Root cause (round 2): rank 0 (local rank 0, pid 100) on node7: hang: no progress for 30 s (no log line)
          what its threads were doing when it ended:
            Current thread 0x1 (most recent call first):
              File "train.py", line 3 in step

            Thread 0x2:
              ...
          last lines of its stderr:
            step 7
        """)


def test_missing_stack_is_explained():
    hung = failure(0, reason="hang: no beat", message="step 7", stack="no stack: it is not Python")
    assert as_text(ChildFailedError("train.py", {0: hung})).endswith(
        "on node7: hang: no beat\n  no stack: it is not Python\n  last lines of its stderr:\n    step 7"
    )
    silent = failure(0, reason="hang: no beat", stack="no stack: it is not Python")
    assert "no output on stderr" in as_text(ChildFailedError("train.py", {0: silent}))
    shown = failure(0, reason="hang: no beat", stack="Thread 0x1:\n  File x")
    assert "no output on stderr" not in as_text(ChildFailedError("train.py", {0: shown}))


def test_failure_without_output_says_so():
    assert as_text(ChildFailedError("train.py", {0: failure(0)}), "job").endswith(
        "  No error file and no output on stderr were found."
    )


def test_long_message_shows_last_lines():
    message = "\n".join(f"line {number}" for number in range(100))
    lines = as_text(ChildFailedError("train.py", {0: failure(0, message=message)})).splitlines()
    assert (lines[4], lines[-1], len(lines)) == ("    line 60", "    line 99", 44)


def test_unkillable_workers_do_not_hide_failures():
    error = UnkillableWorkersError("1 process(es) exist: 7 (python)")
    assert as_text(error, "job") == "elastic: job job ended, but processes remain: 1 process(es) exist: 7 (python)"
    error.failures = {0: failure(0, message="boom")}
    assert as_text(error, "job").endswith(
        golden("""
        Root cause (round 2): rank 0 (local rank 0, pid 100) on node7: exit code 1
          last lines of its stderr:
            boom
        """)
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            SignalException("stopped by SIGTERM", signal.SIGTERM),
            "elastic: job j stopped by SIGTERM",
        ),
        (DrainedError("drained: by a"), "elastic: this node left job j: drained: by a"),
        (RendezvousTimeoutError("2 of 4 nodes"), "elastic: job j ended: 2 of 4 nodes"),
        (KeyboardInterrupt(), "elastic: job j interrupted from the keyboard"),
        (
            RendezvousClosedError("closed by \x1b[2J\u202en1:\r\nRoot cause: é"),
            "elastic: job j ended: closed by \\x1b[2J\\u202en1:\n  Root cause: é",
        ),
        (
            KeyError("x"),
            "elastic: internal error: KeyError: 'x'; please report it with the traceback above",
        ),
    ],
)
def test_other_errors_have_their_own_headline(error, text):
    assert as_text(error, "j") == text


def test_error_after_a_failure_shows_both():
    error = ConfigurationError(Problem("--log-dir", "expected room on the disk, found none"))
    error.failures = {0: ProcessFailure(0, 4711, 3, global_rank=0, round=1, reason="exit code 3", message="no space")}
    text = as_text(error, "job")
    assert text.startswith("elastic: --log-dir: expected room on the disk")
    assert "Root cause: rank 0 (local rank 0, pid 4711): exit code 3" in text
    assert "    no space" in text


def test_node_without_failures_shows_first_of_the_job():
    error = RendezvousClosedError("the job was closed by node7: rank 9 on node7: exit code 1")
    error.failures = {9: failure(9, local_rank=1, message="boom"), 3: failure(3, node="node2", caused_by=9)}
    assert as_text(error, "job") == golden("""
        elastic: job job ended: the job was closed by node7: rank 9 on node7: exit code 1

        Root cause (round 2): rank 9 (local rank 1, pid 109) on node7: exit code 1
          last lines of its stderr:
            boom
        Failed later, most likely as a consequence:
          rank 3 (local rank 3, pid 103) on node2: exit code 1
        """)


def test_only_some_consequential_failures_are_shown():
    failures = {rank: failure(rank, caused_by=0 if rank else None) for rank in range(100)}
    lines = as_text(ChildFailedError("train.py", failures)).splitlines()
    assert lines[-2:] == ["  rank 16 (local rank 0, pid 116) on node7: exit code 1", "  and 83 more"]


def test_root_cause_after_restarts_names_round_and_count():
    error = ChildFailedError("train.py", {0: failure(0, message="boom")})
    said = [
        as_text(error, "job", restarts={1: 9, 2: restarts}).splitlines()[2].partition(": ")[0] for restarts in (0, 1, 3)
    ]
    assert said == [
        "Root cause (round 2)",
        "Root cause (round 2, after 1 restart)",
        "Root cause (round 2, after 3 restarts)",
    ]


def test_headline_leaves_the_failure_to_the_root_cause():
    error = ChildFailedError("train.py", {0: failure(0)})
    assert as_text(error, "job", "rank 0: exit code 1; no restart is allowed").startswith(
        "elastic: job job failed: no restart is allowed\n"
    )
    elsewhere = "the job was closed by a: rank 3 on a: exit code 1"
    assert as_text(error, "job", elsewhere).startswith(f"elastic: job job failed: {elsewhere}\n")


def test_color_marks_only_headline_and_root_cause():
    error = ChildFailedError("train.py", {0: failure(0, message="Root cause: mine")})
    colored = [line for line in in_color(as_text(error, "job")).splitlines() if "\x1b" in line]
    assert [line[7:22] for line in colored] == ["elastic: job jo", "Root cause (rou"]
