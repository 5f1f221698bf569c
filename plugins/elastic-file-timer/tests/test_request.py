"""Encoding and decoding of requests, one line of the pipe each."""

import json
import os

import pytest
from elastic_file_timer import FileTimerRequest
from elastic_file_timer.request import LONGEST, Lines, parse, without_torn_part
from hypothesis import given, settings
from hypothesis import strategies as st

OURS = FileTimerRequest(7, "load", 1_700_000_000.5, 9, "job", 123, 77.25)
TORCHS = {"version": 1, "pid": 7, "scope_id": "load", "expiration_time": 1_700_000_000.5, "signal": 9}


def test_request_survives_encoding():
    assert parse(OURS.to_json().encode()) == OURS
    release = FileTimerRequest(7, "load", -1.0, 0, "job", 123)
    assert parse(release.to_json().encode()) == release
    assert (OURS.releases, release.releases, OURS.worker_pid) == (False, True, 7)


def test_torchs_requests_are_parsed():
    assert parse(json.dumps(TORCHS).encode()) == FileTimerRequest(7, "load", 1_700_000_000.5, 9)
    assert parse(json.dumps({**TORCHS, "expiration_time": -1, "signal": 0}).encode()).releases


INVALID = {
    "version": (2, None),
    "pid": (0, -1, True, "7", 7.0, 10**30),
    "scope_id": (None, 5),
    "expiration_time": (float("nan"), float("inf"), True, "soon", 10**400),
    "signal": (65, None),
    "run_id": (5,),
    "started": (-1, 1.5),
    "deadline": (float("-inf"), "soon"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in INVALID.items() for value in values])
def test_invalid_field_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name}: expected|expected {name}"):
        parse(json.dumps({**json.loads(OURS.to_json()), name: value}).encode())


@pytest.mark.parametrize("name", list(TORCHS))
def test_missing_field_is_named(name):
    with pytest.raises(ValueError, match=f"{name}: expected|expected {name}"):
        parse(json.dumps({key: value for key, value in TORCHS.items() if key != name}).encode())


@pytest.mark.parametrize(
    "line", [b"", b"\0\0", b"[]", b"5", b'"x"', b"{", b"[" * 4000, b"\xff\xfe", b"9" * 4000, b"x" * 5000, b"null"]
)
def test_malformed_request_is_refused(line):
    with pytest.raises(ValueError, match=r"expected|invalid JSON"):
        parse(line)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=200).filter(lambda data: b"\n" not in data), max_size=8), st.integers(1, 50))
def test_lines_do_not_depend_on_chunk_size(lines, size):
    stream = b"".join(line + b"\n" for line in lines)
    reader, found = Lines(), []
    for start in range(0, len(stream), size):
        found += reader.feed(stream[start : start + size])
    assert found == lines


@pytest.mark.parametrize("torn", [b'{"version": 1, "pi', b"garbage ", b"\0", b'{"version": 1}' * 3, b"x" * 100_000])
@pytest.mark.parametrize("size", [1 << 16, 1000])
def test_requests_after_a_torn_line_are_parsed(torn, size):
    request = OURS.to_json().encode()
    stream = torn + request + b"\n" + request + b"\n"
    reader, found = Lines(), []
    for start in range(0, len(stream), size):
        found += reader.feed(stream[start : start + size])
    assert [parse(without_torn_part(line)) for line in found] == [OURS, OURS]


def test_endless_line_uses_bounded_memory():
    reader = Lines()
    for _ in range(100):
        assert reader.feed(b"x" * 65536) == []
    (line,) = reader.feed(b"\n")
    assert len(line) <= LONGEST


def test_scope_with_undecodable_bytes_is_escaped():
    scope = os.fsdecode(b"/tmp/\xff.py#3")
    read = parse(FileTimerRequest(7, scope, 5.0).to_json().encode())
    assert read.scope_id == "/tmp/\\udcff.py#3"
    assert parse(FileTimerRequest(7, "/tmp/é.py#3", 5.0).to_json().encode()).scope_id == "/tmp/é.py#3"
