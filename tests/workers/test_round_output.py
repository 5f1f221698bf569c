"""A round's output: log folder, pipes, console and files. The console is the test's own stdout and stderr."""

from __future__ import annotations

import os

import pytest

from elastic_core.errors import ConfigurationError
from elastic_core.workers.output import RoundOutput, make_folder, unwritable
from elastic_core.workers.process import wait_readable
from elastic_core.workers.streams import OutputPolicy

PATIENCE = 30.0


@pytest.fixture
def opened(plan, tmp_path):
    def opened(workers=1, **policy):
        return RoundOutput(plan(workers), OutputPolicy(**policy), tmp_path)

    return opened


def finish(output):
    wait_readable(output.drain(), PATIENCE)
    return output.finish()


def both(rank):
    return 3


def test_single_worker_inherits_stdout(opened):
    output = opened()
    out, err = output.stdio(0)
    assert out is None
    os.write(err, b"to stderr\n")
    output.begin()
    assert finish(output)
    assert output.stderr(0).tail() == ("to stderr",)


def test_tee_prefixes_console_lines_but_not_files(opened, tmp_path, capfd):
    output = opened(2, tee=both)
    for local in (0, 1):
        for fd, name in zip(output.stdio(local), ("out", "err"), strict=True):
            os.write(fd, f"{name} of {local}\nlast".encode())
    output.begin()
    assert finish(output)
    shown = capfd.readouterr()
    assert sorted(shown.out.splitlines()) == [
        f"[default{n}]:{text}" for n in (0, 1) for text in ("last", f"out of {n}")
    ]
    assert sorted(shown.err.splitlines()) == [
        f"[default{n}]:{text}" for n in (0, 1) for text in ("err of " + str(n), "last")
    ]
    assert (tmp_path / "rank-1.out").read_text() == "out of 1\nlast"
    assert (tmp_path / "rank-1.err").read_text() == "err of 1\nlast"


def test_redirected_worker_writes_its_file_directly(opened, tmp_path, capfd):
    """Independent of a slow console or a suspended agent: nothing is moved before `begin`."""
    (tmp_path / "rank-0.err").write_text("from an earlier run\n")
    output = opened(redirects=both)
    out, err = output.stdio(0)
    os.write(out, b"x" * 200_000)
    os.write(
        err,
        b'first\nFatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n  File "x", line 1 in f\nlast\n',
    )
    assert output.written(0) > 200_000
    assert output.stderr(0).tail() == ("first", "last")
    assert "Thread 0x1" in output.stderr(0).dump()
    output.stderr(0).expect_dump()
    assert not output.stderr(0).dump()
    output.begin()
    assert finish(output)
    assert (tmp_path / "rank-0.out").stat().st_size == 200_000
    assert output.stderr(0).tail() == ("first", "last")
    output.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("removed", [False, True])
def test_rotated_or_removed_log_file_is_still_read(opened, tmp_path, removed):
    output = opened(redirects=both)
    _, err = output.stdio(0)
    path = tmp_path / "rank-0.err"
    path.unlink() if removed else path.rename(tmp_path / "old")
    os.write(err, b"last lines\n")
    assert (output.stderr(0).tail(), output.written(0)) == (("last lines",), 11)
    output.begin()
    assert finish(output)
    output.close()


def test_full_disk_is_reported_once_and_output_is_shown(opened, tmp_path, capfd):
    (tmp_path / "rank-0.out").symlink_to("/dev/full")
    output = opened(redirects=lambda rank: 1)
    out, _ = output.stdio(0)
    for number in range(3):
        os.write(out, b"line %d\n" % number)
    output.begin()
    assert finish(output)
    shown = capfd.readouterr()
    assert shown.err.count(f"output lost: file={tmp_path / 'rank-0.out'} ") == 1
    assert "No space left on device" in shown.err
    assert "later output goes to the console" in shown.err
    assert shown.out == "line 0\nline 1\nline 2\n"


def test_filtered_lines_of_all_ranks_share_a_file(opened, tmp_path, capfd):
    output = opened(2, stdout_filters=("loss",), ranks_filter=frozenset({0}))
    for local in (0, 1):
        os.write(output.stdio(local)[0], b"loss of %d\nother\n" % local)
    output.begin()
    assert finish(output)
    assert sorted((tmp_path / "filtered.out").read_text().splitlines()) == [
        "[default0]:loss of 0",
        "[default1]:loss of 1",
    ]
    assert capfd.readouterr().out == "loss of 0\nother\n"


@pytest.mark.parametrize("asked_for", [True, False])
def test_unopenable_file_blames_its_folder_and_leaks_nothing(opened, tmp_path, asked_for, open_files):
    (tmp_path / "rank-1.err").mkdir()
    before = open_files()
    blamed = "--log-dir" if asked_for else "TMPDIR"
    with pytest.raises(ConfigurationError, match=rf"{blamed}: .*rank-1.err: Is a directory"):
        opened(2, redirects=both, stdout_filters=("x",), log_dir=tmp_path if asked_for else None)
    assert open_files() == before


def test_too_many_files_blame_the_limit_and_leak_nothing(opened, open_files, few_files):
    before = open_files()
    with few_files(30), pytest.raises(ConfigurationError, match="ulimit -n"):
        opened(40, redirects=both, stdout_filters=("x",))
    assert open_files() == before


def open_in_a_child(fds):
    """How many of these descriptors are open in a child forked now."""
    child = os.fork()
    if child == 0:
        os._exit(sum(os.path.exists(f"/proc/self/fd/{fd}") for fd in fds))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.integration
def test_forked_child_closes_the_pipes(opened):
    output = opened(2)
    fds = [fd for local in (0, 1) for fd in output.stdio(local)]
    assert open_in_a_child(fds) == 0
    output.begin()
    assert finish(output)


@pytest.mark.integration
def test_forked_child_keeps_reused_descriptors(opened):
    """The streams have ended, and the descriptors of their pipes have been reused."""
    output = opened(2)
    output.begin()
    wait_readable(output.drain(), PATIENCE)
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]  # get the lowest free numbers
    try:
        assert open_in_a_child(others) == len(others)
        assert finish(output)
        assert open_in_a_child(others) == len(others)
    finally:
        for fd in others:
            os.close(fd)


# -- folders


def test_latest_link_points_to_the_newest_round(tmp_path):
    for number in (1, 2):
        folder = tmp_path / "job" / f"round-{number}"
        make_folder(folder, tmp_path / "latest")
        assert (tmp_path / "latest").resolve() == folder
    assert os.readlink(tmp_path / "latest") == "job/round-2"
    assert sorted(os.listdir(tmp_path)) == ["job", "latest"]


def test_folder_named_latest_only_prevents_the_link(tmp_path):
    (tmp_path / "latest").mkdir()
    make_folder(tmp_path / "job", tmp_path / "latest")
    assert sorted(os.listdir(tmp_path)) == ["job", "latest"]


def test_file_in_place_of_the_log_folder_is_rejected(tmp_path):
    (tmp_path / "logs").write_text("")
    with pytest.raises(ConfigurationError, match=r"--log-dir: .*logs/job: Not a directory"):
        make_folder(tmp_path / "logs" / "job", tmp_path / "logs" / "latest")
    with pytest.raises(ConfigurationError, match=r"TMPDIR: .*logs/job: Not a directory"):
        make_folder(tmp_path / "logs" / "job", None)


def test_missing_temporary_directory_names_tmpdir():
    error = FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")
    assert str(unwritable(error, log_dir=False)).startswith(
        "TMPDIR: cannot write to any folder: No usable temporary directory found in ['/tmp']; "
    )
