"""Counters of out-of-memory kills, read from test files."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.workers.failure import OomWatch, oom_counters, oom_kills


@pytest.fixture
def counter(tmp_path):
    def counter(name, kills=None):
        path = tmp_path / name
        if kills is not None:
            path.write_text(f"low 0\noom 7\noom_kill {kills}\noom_group_kill 9\n")
        return path

    return counter


@pytest.mark.parametrize("text", ["", "oom 3\n", "oom_kill many\n", "oom_kill\n", "oom_kill_disable 5\n"])
def test_malformed_counter_file_counts_0_kills(tmp_path, text):
    (tmp_path / "c").write_text(text)
    assert oom_kills(tmp_path / "c") == 0


def test_oom_kills_are_read_from_the_counter_file(counter):
    assert oom_kills(counter("events", 4)) == 4
    assert oom_kills(counter("missing")) == 0


def test_only_kills_counted_since_start_are_explained(counter):
    inner, outer = counter("inner", 3), counter("outer", 8)
    watch = OomWatch({inner: "in the inner group", outer: "in the outer group"})
    assert watch.explanation() == ""
    counter("outer", 9)
    assert watch.explanation() == "the kernel counted such a kill in the outer group"
    counter("inner", 4)
    assert watch.explanation() == "the kernel counted such a kill in the inner group"


def test_no_counters_give_no_explanation():
    assert OomWatch({}).explanation() == ""


def test_vanished_counter_gives_no_explanation(counter):
    own = counter("gone", 3)
    watch = OomWatch({own: "here"})
    own.unlink()
    assert watch.explanation() == ""


def found_with(tmp_path, membership, *files):
    for name in files:
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("oom_kill 0\n")
    (tmp_path / "membership").write_text(membership)
    found = oom_counters(tmp_path / "membership", tmp_path / "cgroup")
    return [str(path.relative_to(tmp_path / "cgroup")) if tmp_path in path.parents else str(path) for path in found]


def test_cgroup_v2_counter_is_found(tmp_path):
    assert found_with(tmp_path, "0::/a/b\n", "a/b/memory.events") == ["a/b/memory.events"]


def test_cgroup_v1_counter_is_found(tmp_path):
    membership = "5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n"
    assert found_with(tmp_path, membership, "memory/job/memory.oom_control") == ["memory/job/memory.oom_control"]


def test_machine_counter_is_used_only_without_a_cgroup(tmp_path):
    assert found_with(tmp_path, "0::/a\n") == ["/proc/vmstat"]
    assert oom_counters(tmp_path / "missing", tmp_path) == {Path("/proc/vmstat"): "on this machine"}


def test_counters_of_this_machine_are_readable():
    assert all(path.exists() and oom_kills(path) >= 0 for path in oom_counters())
