from __future__ import annotations

import pytest

from elastic_core.rendezvous.policy import PHRASES, is_certain


@pytest.mark.parametrize(
    ("failure", "certain"),
    [
        ({}, False),  # an exit code without a message
        ({"message": "ValueError: no such file"}, True),
        ({"stderr_tail": ("Traceback", "KeyError: 3")}, True),
        ({"message": "RuntimeError: [..] Connection closed by peer [10.0.0.7]:4242"}, False),
        ({"message": "ValueError", "stderr_tail": ("NCCL WARN ..",)}, False),
        ({"exitcode": -9}, True),
        ({"exitcode": -11}, True),
        ({"exitcode": -15, "message": "Connection reset by peer", "error_file_data": {"message": {}}}, False),
        ({"exitcode": -15, "message": "ValueError: no such file", "error_file_data": {"message": {}}}, True),
        ({"exitcode": -6}, False),  # how a collective aborts
        ({"exitcode": -6, "message": "assertion x > 0 failed"}, True),
        ({"message": "   "}, False),
        ({"curable": False}, True),
        ({"exitcode": -6, "reason": "hang: the watchdog timer 'step' was not released in time"}, True),
    ],
)
def test_certainty_of_one_failure(build, failure, certain):
    assert is_certain({0: build.failure(**failure)}) is certain


def test_one_certain_failure_is_enough(build):
    failures = {0: build.failure(0, message="gloo: timed out waiting"), 1: build.failure(1, message="ValueError")}
    assert is_certain(failures)


def test_failure_caused_by_another_is_ignored(build):
    failures = {0: build.failure(0), 1: build.failure(1, exitcode=-9, caused_by=0)}
    assert not is_certain(failures)


def test_no_failure_is_not_certain():
    assert not is_certain({})


def test_phrases_are_lowercase():
    assert [phrase.lower() for phrase in PHRASES] == list(PHRASES)
