"""The pipe's path and permissions, and its removal or replacement by other processes."""

import os
import stat

import pytest
from elastic_file_timer import FileTimerClient
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


def test_pipe_and_its_own_folder_are_private(make_pipe):
    pipe = make_pipe()
    pipe.open()
    assert stat.S_ISFIFO(pipe.path.lstat().st_mode)
    assert (mode(pipe.path), mode(pipe.path.parent)) == (0o600, 0o700)
    pipe.close()
    assert not pipe.path.parent.exists()
    pipe.close()


def test_pipe_at_a_given_path_is_private_and_keeps_its_folder(make_pipe, tmp_path):
    pipe = make_pipe(tmp_path / "timers")
    pipe.open()
    assert mode(pipe.path) == 0o600
    pipe.close()
    assert list(tmp_path.iterdir()) == []


def test_leftover_pipe_is_replaced(make_pipe, tmp_path):
    os.mkfifo(tmp_path / "timers", 0o666)
    pipe = make_pipe(tmp_path / "timers")
    pipe.open()
    assert mode(pipe.path) == 0o600


def test_second_agent_on_the_same_pipe_is_refused(make_pipe, tmp_path):
    first, second = make_pipe(tmp_path / "timers"), make_pipe(tmp_path / "timers")
    first.open()
    with pytest.raises(ConfigurationError, match=r"another process is reading it.*TORCHELASTIC_TIMER_FILE"):
        second.open()
    second.close()
    assert first.look() == ""
    assert first.path.exists()


@pytest.mark.parametrize("kind", ["file", "folder", "link", "socket"])
def test_file_that_is_not_a_pipe_is_left_alone(make_pipe, tmp_path, kind):
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


def test_missing_folder_is_refused(make_pipe, tmp_path):
    with pytest.raises(ConfigurationError, match=r"cannot use the pipe.*No such file"):
        make_pipe(tmp_path / "missing" / "timers").open()


def test_world_writable_folder_is_refused(make_pipe, tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigurationError, match="other users may write"):
        make_pipe(tmp_path / "timers").open()
    assert list(tmp_path.iterdir()) == []


def test_world_writable_sticky_folder_is_accepted(make_pipe, tmp_path, logged):
    tmp_path.chmod(0o1777)
    make_pipe(tmp_path / "timers").open()
    assert logged() == []


@pytest.mark.skipif("os.geteuid() != 0", reason="only root can give files away")
def test_group_writable_folder_is_refused(make_pipe, tmp_path):
    os.chown(tmp_path, -1, 12345)
    tmp_path.chmod(0o770)
    with pytest.raises(ConfigurationError, match="other users may write"):
        make_pipe(tmp_path / "timers").open()


@pytest.mark.skipif("os.geteuid() != 0", reason="only root can give files away")
def test_parent_folder_of_another_user_is_refused(make_pipe, tmp_path):
    folder = tmp_path / "above" / "mine"
    folder.mkdir(parents=True)
    os.chown(folder.parent, 12345, 12345)
    with pytest.raises(ConfigurationError, match="above belongs to user 12345"):
        make_pipe(folder / "timers").open()


@pytest.mark.skipif("os.geteuid() != 0", reason="only root can give files away")
def test_folder_taken_over_by_another_user_is_a_fault(make_pipe):
    pipe = make_pipe()
    pipe.open()
    pipe.path.unlink()
    os.chown(pipe.path.parent, 12345, 12345)
    assert "user 12345 has replaced" in pipe.look()
    assert not pipe.path.exists()


@pytest.mark.skipif("os.geteuid() != 0", reason="only root can give files away")
def test_client_writes_nothing_to_another_users_pipe(tmp_path):
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
def test_folder_or_pipe_of_another_user_is_refused(make_pipe, tmp_path, what):
    path = tmp_path / "timers"
    if what == "pipe":
        os.mkfifo(path)
    os.chown(path if what == "pipe" else tmp_path, 12345, 12345)
    with pytest.raises(ConfigurationError, match="user 12345"):
        make_pipe(path).open()


def test_pipe_stays_open_without_writers(make_pipe):
    pipe = make_pipe()
    pipe.open()
    assert lines_of(pipe) == []
    for scope in ("one", "two"):
        client = FileTimerClient(pipe.path)
        client.acquire(scope, FAR)
        del client
        (line,) = lines_of(pipe)
        assert scope in line.decode()


def test_read_ends_despite_a_flood(make_pipe):
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


def test_removed_own_folder_is_recreated(make_pipe):
    pipe = make_pipe()
    pipe.open()
    pipe.path.unlink()
    pipe.path.parent.rmdir()
    assert pipe.look() == ""
    assert (mode(pipe.path), mode(pipe.path.parent)) == (0o600, 0o700)
    pipe.close()
    assert not pipe.path.parent.exists()


def test_file_in_place_of_the_pipe_is_a_fault_and_stays(make_pipe, tmp_path):
    pipe = make_pipe(tmp_path / "timers")
    pipe.open()
    pipe.path.unlink()
    pipe.path.write_text("work")
    assert "was replaced by another file" in pipe.look()
    pipe.close()
    assert pipe.path.read_text() == "work"


def test_repeated_removal_of_the_pipe_leaks_no_descriptors(make_pipe, tmp_path):
    pipe = make_pipe(tmp_path / "timers")
    pipe.open()
    for _ in range(30):
        pipe.path.unlink()
        assert pipe.look() == ""
    assert len(pipe.readers) <= 8
    before = len(os.listdir("/proc/self/fd"))
    pipe.close()
    assert len(os.listdir("/proc/self/fd")) <= before - 1
