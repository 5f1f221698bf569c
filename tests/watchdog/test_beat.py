"""A worker sends heartbeats, and its agent sees them."""

import os
import subprocess
import sys
import threading

import pytest

from elastic_core.watchdog import beat
from elastic_core.watchdog.beat import BEAT_FILE, HeartbeatFile

pytestmark = pytest.mark.integration

LIMIT_S = 60


class WatchedFile(HeartbeatFile):
    """A heartbeat file that remembers the last heartbeat it has seen."""

    seen = 0

    def changed(self):
        before, self.seen = self.seen, self.latest()
        return self.seen != before


@pytest.fixture
def beats(tmp_path):
    file = WatchedFile(tmp_path / "beats")
    yield file
    file.close()


def run(script, path, **environ):
    named = {BEAT_FILE: str(path)} if path else {}
    plain = {name: value for name, value in os.environ.items() if name != BEAT_FILE}
    command = [sys.executable, "-c", "from elastic_core.watchdog import beat\n" + script]
    return subprocess.run(command, env={**plain, **named, **environ}, timeout=LIMIT_S, capture_output=True, text=True)


def run_well(script, path):
    done = run(script, path)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_file_without_heartbeat_is_unchanged(beats):
    assert not beats.changed()
    run_well("", beats.path)
    assert not beats.changed()


def test_heartbeat_without_an_agent_does_nothing():
    run_well("beat(); beat()", None)
    beat()


@pytest.mark.parametrize("path", ["missing", "folder", "empty", "large", "link", "pipe"])
def test_other_files_are_left_alone(path, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "large").write_bytes(b"a user's data")
    (tmp_path / "link").symlink_to("large")
    os.mkfifo(tmp_path / "pipe")
    run_well("beat(); beat()", tmp_path / path)
    assert (tmp_path / "empty").read_bytes() == b""
    assert (tmp_path / "large").read_bytes() == b"a user's data"


def test_forked_child_sends_heartbeats_for_its_worker(beats):
    run_well("import os\nif os.fork() == 0:\n  beat(); os._exit(0)\nos.wait()", beats.path)
    assert beats.changed()


def test_forked_worker_can_use_its_own_file(beats, tmp_path):
    other = WatchedFile(tmp_path / "other")
    here = f"os.environ[{BEAT_FILE!r}] = {str(other.path)!r}"
    script = f"import os\nbeat()\nif os.fork() == 0:\n  {here}; beat(); os._exit(0)"
    run_well("beat()", beats.path)
    assert beats.changed()
    run_well(script + "\nos.wait()", beats.path)
    assert beats.changed()
    assert other.changed()
    other.close()


def test_heartbeat_after_closerange_spares_the_scripts_files(beats, tmp_path):
    opened = f"files = [open({str(tmp_path / 'work')!r} + str(number), 'wb') for number in range(5)]"
    run_well(f"import os\nbeat()\nos.closerange(3, 100)\n{opened}\nbeat()", beats.path)
    assert beats.changed()
    assert [path.read_bytes() for path in tmp_path.glob("work*")] == [b""] * 5


def test_threads_can_send_heartbeats_concurrently(beats):
    script = """
import threading
threads = [threading.Thread(target=lambda: [beat() for _ in range(1000)]) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    run_well(script, beats.path)
    assert beats.changed()


def test_import_loads_no_installed_package():
    heavy = "{'psutil', 'structlog', 'torch', 'pluggy', 'grpc'}"
    assert run_well(f"import sys; print({heavy} & set(sys.modules))", None) == "set()\n"


def test_heartbeat_after_deletion_of_the_file_is_ignored(beats):
    beats.path.unlink()
    assert not beats.changed()
    run_well("beat()", beats.path)
    assert not beats.changed()


def test_existing_file_is_rejected(tmp_path):
    (tmp_path / "beats").write_text("work")
    with pytest.raises(FileExistsError):
        HeartbeatFile(tmp_path / "beats")
    assert (tmp_path / "beats").read_text() == "work"


def test_close_leaves_no_descriptor_or_thread(tmp_path):
    def ours():
        return [path for fd in os.listdir("/proc/self/fd") if str(tmp_path) in (path := leads_to(fd))]

    threads = set(threading.enumerate())  # threads of other tests may be about to end
    for number in range(20):
        file = HeartbeatFile(tmp_path / str(number))
        assert len(ours()) == 1
        file.close()
    assert ours() == []
    assert set(threading.enumerate()) <= threads


def leads_to(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""  # closed in the meantime
