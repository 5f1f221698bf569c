"""Readers of foreign data accept any bytes, or raise their own errors; see `targets.py`. The examples are the same in
each run; `tox run -e fuzz` searches for others."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from fuzz.installed import load_targets
from fuzz.targets import Target
from fuzz.tokens import TOKENS
from hypothesis import given, settings
from hypothesis import strategies as st

TARGETS = load_targets()
EACH = pytest.mark.parametrize("name", TARGETS)
few = settings(derandomize=True, max_examples=40)

_PLACE = st.integers(0, 4000)
_CHANGE = st.tuples(_PLACE, st.integers(0, 40), st.sampled_from(TOKENS) | st.binary(max_size=4))


def _changed(seed, changes):
    """The seed with some bytes replaced."""
    for place, length, bytes_ in changes:
        begin = place % (len(seed) + 1)
        seed = seed[:begin] + bytes_ + seed[begin + length :]
    return seed


@EACH
def test_seeds_and_past_findings_pass(name):
    findings = sorted(TARGETS[name].kept.glob("*"))
    for data in (b"", *TARGETS[name].seeds, *(path.read_bytes() for path in findings)):
        tracemalloc.start()
        try:
            TARGETS[name](data)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert most < 2**26 + 100 * len(data), f"{most} bytes of memory for {len(data)}, {data[:60]!r}"


@EACH
@few
@given(data=st.data())
def test_arbitrary_input_is_accepted_or_refused(name, data):
    seeds = [seed for seed in TARGETS[name].seeds if len(seed) < 4000]
    changed = st.builds(_changed, st.sampled_from(seeds), st.lists(_CHANGE, min_size=1, max_size=4))
    TARGETS[name](data.draw(st.binary(max_size=60) | changed))


def test_unexpected_or_long_errors_are_defects():
    with pytest.raises(KeyError):
        Target({}.__getitem__, (ValueError,), (), Path())(b"x")
    with pytest.raises(AssertionError, match="an error of 5000 characters"):
        Target(_talkative, (ValueError,), (), Path())(b"x")


def _talkative(data):
    raise ValueError("x" * 5000)


def test_every_past_finding_has_a_target():
    kept = {folder for target in TARGETS.values() for folder in target.kept.parent.glob("*")}
    assert kept <= {target.kept for target in TARGETS.values()}
