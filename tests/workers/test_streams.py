"""The destinations of streams for every combination of flags."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_core.interfaces.workers import WorkerRanks
from elastic_core.workers.streams import OutputPolicy, Stream, StreamPlan, line_prefix, plan_stream, round_folder

FOLDER = Path("/logs")


def planned(plan, stream, local=0, workers=1, first_rank=0, **policy):
    made = plan(workers, first_rank)
    return plan_stream(stream, made.ranks[local], made, OutputPolicy(**policy), FOLDER)


def for_every_rank(bits):
    return lambda rank: bits


def test_only_stdout_of_a_single_unwatched_worker_is_not_captured(plan):
    assert not planned(plan, Stream.OUT).captured
    assert planned(plan, Stream.OUT, workers=2) == StreamPlan(captured=True)
    assert planned(plan, Stream.OUT, watched=True) == StreamPlan(captured=True)
    assert planned(plan, Stream.ERR) == StreamPlan(captured=True, keeps_tail=True)


def test_non_utf8_prefix_and_filters_are_kept(plan):
    """A command line may contain such bytes."""
    word = os.fsdecode(b"\xff")
    found = planned(plan, Stream.OUT, tee=for_every_rank(3), prefix_template=f"{word}:", stdout_filters=(word,))
    assert (found.prefix, found.filters) == (b"\xff:", (b"\xff",))


@pytest.mark.parametrize(
    ("redirects", "tee", "stream", "console", "file"),
    [
        (0, 0, Stream.OUT, True, False),
        (0, 0, Stream.ERR, True, False),
        (1, 0, Stream.OUT, False, True),
        (1, 0, Stream.ERR, True, False),
        (2, 0, Stream.OUT, True, False),
        (2, 0, Stream.ERR, False, True),
        (3, 0, Stream.OUT, False, True),
        (3, 0, Stream.ERR, False, True),
        (0, 1, Stream.OUT, True, True),
        (0, 2, Stream.ERR, True, True),
        (0, 3, Stream.ERR, True, True),
        (3, 1, Stream.OUT, True, True),
        (3, 1, Stream.ERR, False, True),
    ],
)
def test_redirect_and_tee_choose_console_and_file(plan, redirects, tee, stream, console, file):
    found = planned(plan, stream, redirects=for_every_rank(redirects), tee=for_every_rank(tee))
    assert found.console is console
    assert found.file == (FOLDER / f"rank-0.{stream.suffix}" if file else None)
    assert bool(found.prefix) is bool(tee & stream)


def test_redirects_map_local_ranks_and_files_use_global_ranks(plan):
    choice = {11: 1}
    found = planned(plan, Stream.OUT, 11, 12, first_rank=100, redirects=lambda rank: choice.get(rank, 0))
    assert found.file == FOLDER / "rank-111.out"
    assert planned(plan, Stream.OUT, 10, 12, redirects=lambda rank: choice.get(rank, 0)).file is None


def test_ranks_filter_hides_console_output_only(plan):
    policy = {"ranks_filter": frozenset({1}), "tee": for_every_rank(3)}
    hidden, shown = (planned(plan, Stream.OUT, local, 2, **policy) for local in (0, 1))
    assert (hidden.captured, hidden.console, hidden.file) == (True, False, FOLDER / "rank-0.out")
    assert shown.console


def test_filters_apply_to_one_stream(plan):
    found = planned(plan, Stream.OUT, stdout_filters=("loss", "löss"))
    assert (found.filtered, found.filters) == (FOLDER / "filtered.out", (b"loss", "löss".encode()))
    assert planned(plan, Stream.ERR, stdout_filters=("loss",)).filtered is None
    assert planned(plan, Stream.ERR, stderr_filters=("x",)).filtered == FOLDER / "filtered.err"


def test_prefix_substitutes_known_names_only(plan):
    made = plan(1, node="host1", role="eval", group_rank=7, round=3, run_id="j")
    template = "${role_name}|${local_rank}|${rank}|${group_rank}|${host}|${run_id}|${round}|${what}|$"
    assert line_prefix(template, WorkerRanks(12, 34, 5), made) == b"eval|12|34|7|host1|j|3|${what}|$"


@pytest.mark.parametrize(
    ("run_id", "name"), [("job", "job"), ("a/b", "a_b"), ("..", "__"), (".", "_"), ("../x", ".._x"), ("v1.2", "v1.2")]
)
def test_round_folder_stays_under_the_log_dir(plan, run_id, name):
    assert round_folder(FOLDER, plan(run_id=run_id, round=4)) == FOLDER / name / "round-4"
