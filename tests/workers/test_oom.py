"""Counters of out-of-memory kills, in files of our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.workers.failure import OomCounter, OomWatch, counters_of_this_machine


@pytest.fixture
def counter(tmp_path):
    def counter(name, kills=None):
        path = tmp_path / name
        if kills is not None:
            path.write_text(f"low 0\noom 7\noom_kill {kills}\noom_group_kill 9\n")
        return OomCounter(path, f"counted by {name}")

    return counter


@pytest.mark.parametrize("text", ["", "oom 3\n", "oom_kill many\n", "oom_kill\n", "oom_kill_disable 5\n"])
def test_a_file_that_does_not_say_counts_nothing(tmp_path, text):
    (tmp_path / "c").write_text(text)
    assert OomCounter(tmp_path / "c", "here").read() == 0


def test_a_file_is_read(counter):
    assert counter("events", 4).read() == 4
    assert counter("missing").read() == 0


def test_only_what_was_counted_since_the_start_tells(counter):
    narrow, wide = counter("narrow", 3), counter("wide", 8)
    watch = OomWatch((narrow, wide))
    assert watch.explanation() == ""
    counter("wide", 9)
    assert watch.explanation() != ""
    assert "counted by wide" in watch.explanation()
    counter("narrow", 4)
    assert "counted by narrow" in watch.explanation()


def test_no_counters_no_verdict():
    assert OomWatch(()).explanation() == ""


def test_a_counter_that_vanished_is_no_kill(counter):
    own = counter("gone", 3)
    watch = OomWatch((own,))
    own.path.unlink()
    assert watch.explanation() == ""


def found_with(tmp_path, membership, *files):
    for name in files:
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("oom_kill 0\n")
    (tmp_path / "membership").write_text(membership)
    found = counters_of_this_machine(tmp_path / "membership", tmp_path / "cgroup")
    return [str(c.path.relative_to(tmp_path / "cgroup")) if tmp_path in c.path.parents else str(c.path) for c in found]


def test_the_own_group_of_version_2(tmp_path):
    assert found_with(tmp_path, "0::/a/b\n", "a/b/memory.events") == ["a/b/memory.events"]


def test_the_own_group_of_version_1(tmp_path):
    membership = "5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n"
    assert found_with(tmp_path, membership, "memory/job/memory.oom_control") == ["memory/job/memory.oom_control"]


def test_only_without_a_group_the_whole_machine_speaks(tmp_path):
    assert found_with(tmp_path, "0::/a\n") == ["/proc/vmstat"]
    assert [c.path for c in counters_of_this_machine(tmp_path / "missing", tmp_path)] == [Path("/proc/vmstat")]


def test_this_machine_has_one():
    assert all(counter.path.exists() and counter.read() >= 0 for counter in counters_of_this_machine())
