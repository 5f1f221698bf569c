"""Where the pipe lies, who may use it, and what happens to it."""

import os
import stat

import pytest
from elastic_file_timer import FileTimerClient
from elastic_file_timer.client import TIMER_FILE
from elastic_file_timer.pipe import TimerPipe

from elastic_core.errors import ConfigurationError

FAR = 4e9  # seconds since the epoch


@pytest.fixture
def make_pipe():
    pipes = []

    def make(path=None):
        pipes.append(TimerPipe(path))
        return pipes[-1]

    yield make
    for pipe in pipes:
        pipe.close()


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def lines_of(pipe):
    return [line for reader in pipe.readers for lines in reader.read() for line in lines]


def test_it_is_private_and_so_is_the_folder_made_for_it(make_pipe):
    pipe = make_pipe()
    pipe.open()
    assert stat.S_ISFIFO(pipe.path.lstat().st_mode)
    assert (mode(pipe.path), mode(pipe.path.parent)) == (0o600, 0o700)
    pipe.close()
    assert not pipe.path.parent.exists()
    pipe.close()


def test_a_given_path_is_private_and_its_folder_stays(make_pipe, tmp_path):
    pipe = make_pipe(tmp_path / "timers")
    pipe.open()
    assert mode(pipe.path) == 0o600
    pipe.close()
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_that_was_left_behind_is_replaced(make_pipe, tmp_path):
    os.mkfifo(tmp_path / "timers", 0o666)
    pipe = make_pipe(tmp_path / "timers")
    pipe.open()
    assert mode(pipe.path) == 0o600


def test_two_agents_cannot_have_one_pipe(make_pipe, tmp_path):
    first, second = make_pipe(tmp_path / "timers"), make_pipe(tmp_path / "timers")
    first.open()
    with pytest.raises(ConfigurationError, match=r"another process is reading it.*TORCHELASTIC_TIMER_FILE"):
        second.open()
    second.close()
    assert first.look() == ""
    assert first.path.exists()


@pytest.mark.parametrize("kind", ["file", "folder", "link", "socket"])
def test_what_is_no_pipe_is_left_alone(make_pipe, tmp_path, kind):
    path = tmp_path / "timers"
    if kind == "file":
        path.write_text("work")
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to("pipe")
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)
    before = path.lstat()
    with pytest.raises(ConfigurationError, match="the existing file is not a pipe"):
        make_pipe(path).open()
    assert path.lstat() == before


def test_a_folder_that_is_missing(make_pipe, tmp_path):
    with pytest.raises(ConfigurationError, match=r"cannot use the pipe.*No such file"):
        make_pipe(tmp_path / "missing" / "timers").open()


def test_a_folder_that_everybody_can_write_is_refused(make_pipe, tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigurationError, match="other users may write"):
        make_pipe(tmp_path / "timers").open()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_like_tmp_is_good(make_pipe, tmp_path, logged):
    tmp_path.chmod(0o1777)
    make_pipe(tmp_path / "timers").open()
    assert logged() == []


@pytest.mark.skipif("os.geteuid() != 0", reason="only root can give files away")
def test_a_folder_that_a_group_can_write_is_refused(make_pipe, tmp_path):
    os.chown(tmp_path, -1, 12345)
    tmp_path.chmod(0o770)
    with pytest.raises(ConfigurationError, match="other users may write"):
        make_pipe(tmp_path / "timers").open()


@pytest.mark.skipif("os.geteuid() != 0", reason="only root can give files away")
def test_a_folder_above_counts_too(make_pipe, tmp_path):
    folder = tmp_path / "above" / "mine"
    folder.mkdir(parents=True)
    os.chown(folder.parent, 12345, 12345)
    with pytest.raises(ConfigurationError, match="above belongs to user 12345"):
        make_pipe(folder / "timers").open()


@pytest.mark.skipif("os.geteuid() != 0", reason="only root can give files away")
def test_a_folder_that_somebody_else_made_in_place_of_ours_is_a_fault(make_pipe):
    pipe = make_pipe()
    pipe.open()
    pipe.path.unlink()
    os.chown(pipe.path.parent, 12345, 12345)
    assert "now belongs to user 12345" in pipe.look()
    assert not pipe.path.exists()


@pytest.mark.skipif("os.geteuid() != 0", reason="only root can give files away")
def test_a_client_tells_a_pipe_of_somebody_else_nothing(tmp_path):
    os.mkfifo(tmp_path / "timers")
    os.chown(tmp_path / "timers", 12345, 12345)
    reader = os.open(tmp_path / "timers", os.O_RDONLY | os.O_NONBLOCK)
    client = FileTimerClient(tmp_path / "timers", patience=0.1)
    with pytest.raises(BrokenPipeError, match="it belongs to user 12345"):
        client.acquire("scope", FAR)
    assert os.read(reader, 100) == b""
    os.close(reader)


@pytest.mark.skipif("os.geteuid() != 0", reason="only root can give files away")
@pytest.mark.parametrize("what", ["folder", "pipe"])
def test_what_belongs_to_somebody_else_is_refused(make_pipe, tmp_path, what):
    path = tmp_path / "timers"
    if what == "pipe":
        os.mkfifo(path)
    os.chown(path if what == "pipe" else tmp_path, 12345, 12345)
    with pytest.raises(ConfigurationError, match="user 12345"):
        make_pipe(path).open()


def test_without_a_writer_it_has_no_end(make_pipe):
    pipe = make_pipe()
    pipe.open()
    assert lines_of(pipe) == []
    for scope in ("one", "two"):
        client = FileTimerClient(pipe.path)
        client.acquire(scope, FAR)
        del client
        (line,) = lines_of(pipe)
        assert scope in line.decode()


def test_a_flood_does_not_hold_the_reader(make_pipe):
    pipe = make_pipe()
    pipe.open()
    (reader,) = pipe.readers
    writer = os.open(pipe.path, os.O_WRONLY | os.O_NONBLOCK)
    turns = 0
    for _ in reader.read():
        turns += 1
        try:
            while True:
                os.write(writer, b"x" * 4095 + b"\n")
        except BlockingIOError:
            pass
    os.close(writer)
    assert turns <= 16


def test_a_pipe_that_was_removed_is_made_again_and_both_are_read(make_pipe, tmp_path, logged):
    pipe = make_pipe(tmp_path / "timers")
    pipe.open()
    early = FileTimerClient(pipe.path)
    early.acquire("early", FAR)
    pipe.path.unlink()
    assert pipe.look() == ""
    assert [entry["event"] for entry in logged()] == ["timer pipe made again"]
    assert mode(pipe.path) == 0o600
    late = FileTimerClient(pipe.path)
    late.acquire("late", FAR)
    early.release("early")
    assert len(lines_of(pipe)) == 3


def test_its_own_folder_is_made_again_as_well(make_pipe):
    pipe = make_pipe()
    pipe.open()
    pipe.path.unlink()
    pipe.path.parent.rmdir()
    assert pipe.look() == ""
    assert (mode(pipe.path), mode(pipe.path.parent)) == (0o600, 0o700)
    pipe.close()
    assert not pipe.path.parent.exists()


def test_the_folder_of_a_given_path_is_not_made_again(make_pipe, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    pipe = make_pipe(folder / "timers")
    pipe.open()
    pipe.path.unlink()
    folder.rmdir()
    assert "cannot be created again: No such file" in pipe.look()
    folder.mkdir()
    assert pipe.look() == ""
    assert pipe.path.exists()


def test_what_takes_its_place_is_a_fault_and_stays(make_pipe, tmp_path):
    pipe = make_pipe(tmp_path / "timers")
    pipe.open()
    pipe.path.unlink()
    pipe.path.write_text("work")
    assert "was replaced by another file" in pipe.look()
    pipe.close()
    assert pipe.path.read_text() == "work"


def test_removing_it_again_and_again_costs_no_descriptors(make_pipe, tmp_path):
    pipe = make_pipe(tmp_path / "timers")
    pipe.open()
    for _ in range(30):
        pipe.path.unlink()
        assert pipe.look() == ""
    assert len(pipe.readers) <= 8
    before = len(os.listdir("/proc/self/fd"))
    pipe.close()
    assert len(os.listdir("/proc/self/fd")) <= before - 1


def test_the_variable_is_the_one_of_torchrun():
    assert TIMER_FILE == "TORCHELASTIC_TIMER_FILE"
