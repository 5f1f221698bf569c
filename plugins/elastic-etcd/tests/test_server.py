"""Start and stop of real etcd processes, and the errors of both."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from cluster import binary
from elastic_etcd.client.values import Put, Transaction
from elastic_etcd.server import EtcdServer, EtcdServerError, process
from elastic_etcd.server.process import VARIABLE, version_in, version_of
from elastic_etcd.server.server import answers_as

from elastic_core import log
from elastic_core.errors import ConfigurationError

pytestmark = pytest.mark.integration

LONG = 60


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    if named := os.environ.get("ELASTIC_TEST_ETCD"):
        monkeypatch.setenv(VARIABLE, named)


@pytest.fixture
def server():
    made = EtcdServer()
    yield made
    made.stop()


@pytest.fixture
def folder_with(tmp_path):
    """Makes a folder with a shell script that pretends to be etcd."""

    def make(name, text, mode=0o755):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "etcd").write_text(f"#!/bin/sh\n{text}\n")
        (folder / "etcd").chmod(0o755)
        folder.chmod(mode)
        return folder

    return make


@pytest.fixture
def program(folder_with):
    """Makes one such script; returns its path."""
    return lambda text: str(folder_with("pretends", text) / "etcd")


def ended(pid):
    """Whether the process has ended; a zombie that its new parent has not reaped counts as ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def folder_of(pid):
    return Path(os.readlink(f"/proc/{pid}/cwd"))


def test_server_starts_serves_and_stops(server, eventually):
    server.start(timeout=LONG)
    assert (server.get_host(), server.get_endpoint()) == ("127.0.0.1", f"127.0.0.1:{server.get_port()}")
    client = server.get_client()
    assert client.transact(Transaction((), (Put(b"a", b"1"),))).succeeded
    assert client.read(b"a").first.value == b"1"
    client.close()
    pid, folder = server.pid, folder_of(server.pid)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert os.getsid(pid) != os.getsid(0)
    listening = [c.laddr for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert [(address.ip, address.port) for address in listening] == [("127.0.0.1", server.get_port())]
    with pytest.raises(RuntimeError, match="stop it first"):
        server.start()
    server.stop()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    server.stop()
    assert server.pid == 0


def test_server_has_no_endpoint_before_its_start(server):
    with pytest.raises(RuntimeError, match="call start"):
        server.get_endpoint()


def test_given_data_directory_keeps_data_and_log(tmp_path):
    folder = tmp_path / "kept"
    for expected in (None, b"1"):
        with EtcdServer(folder) as server:
            client = server.get_client()
            found = client.read(b"a").first
            assert (found.value if found else None) == expected
            client.transact(Transaction((), (Put(b"a", b"1"),)))
            client.close()
    assert (folder / "etcd.log").read_text()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_data_directory_is_reusable_after_a_kill(tmp_path, eventually):
    with EtcdServer(tmp_path) as server:
        os.kill(server.pid, signal.SIGKILL)
        eventually(lambda: server.pid == 0, LONG)
    with EtcdServer(tmp_path) as server:
        assert server.pid


def test_server_output_is_copied_to_a_file(server, tmp_path):
    with open(tmp_path / "err", "wb") as file:
        server.start(timeout=LONG, stderr=file)
    kept = (folder_of(server.pid) / "etcd.log").read_text()
    server.stop()
    assert "elastic-" in (tmp_path / "err").read_text()
    assert "elastic-" in kept


@pytest.mark.parametrize("stderr", [subprocess.PIPE, subprocess.STDOUT])
def test_server_output_to_a_pipe_is_refused(server, stderr):
    with pytest.raises(ValueError, match="must be a file"):
        server.start(stderr=stderr)


# The end of the server, and of its owner


@pytest.mark.parametrize(("killed", "reason"), [("server", "killed by SIGKILL"), ("keeper", "its keeper process was")])
def test_loss_of_the_server_is_logged(server, eventually, capfd, killed, reason):
    server.start(timeout=LONG)
    pid, folder = server.pid, folder_of(server.pid)
    keeper = psutil.Process(pid).parent()
    assert keeper.ppid() == os.getpid()
    (psutil.Process(pid) if killed == "server" else keeper).kill()
    shown = []
    eventually(lambda: shown.append(capfd.readouterr().err) or "etcd server lost" in "".join(shown), LONG)
    assert reason in "".join(shown)
    assert server.pid == 0
    eventually(lambda: ended(pid), LONG)
    server.stop()
    assert not folder.exists()


def test_stop_ends_a_paused_server(server):
    server.start(timeout=LONG)
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    begun = time.monotonic()
    server.stop()
    assert time.monotonic() - begun < LONG / 2
    assert not psutil.pid_exists(pid)


OWNER = """
import json, os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes ignore SIGINT by default
from elastic_etcd.server import EtcdServer
server = EtcdServer()
server.start()
if sys.argv[1] == "fork":
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
print(json.dumps({"pid": server.pid, "port": server.get_port()}), flush=True)
if sys.argv[1] == "leave":
    sys.exit()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("end", "keeper_too"),
    [("SIGKILL", False), ("SIGKILL", True), *((end, False) for end in ("SIGTERM", "SIGINT", "leave", "fork"))],
)
def test_server_ends_with_its_owner(end, keeper_too, eventually):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, end],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        started = json.loads(owner.stdout.readline())
        folder = folder_of(started["pid"]) if end != "leave" else None
        if end != "leave":
            assert psutil.pid_exists(started["pid"])
            if keeper_too:
                keeper = psutil.Process(started["pid"]).parent()
                owner.send_signal(signal.SIGSTOP)
                keeper.kill()
            os.kill(owner.pid, getattr(signal, end, signal.SIGKILL))
        owner.wait(LONG)
        eventually(lambda: not psutil.pid_exists(started["pid"]), LONG)
        if keeper_too:  # no process is left to remove the folder
            shutil.rmtree(folder)
        eventually(lambda: folder is None or not folder.exists(), LONG)
    finally:
        os.killpg(owner.pid, signal.SIGKILL) if end == "fork" else owner.kill()
        owner.wait(LONG)
        owner.stdout.close()


# Bad input


def test_start_retries_when_the_port_is_taken(program, tmp_path, server, monkeypatch):
    once = program(
        f'[ -e {tmp_path}/tried ] && exec {binary()} "$@"; touch {tmp_path}/tried; echo address already in use; exit 1'
    )
    monkeypatch.setenv(VARIABLE, once)
    server.start(timeout=LONG, num_retries=1)
    server.stop()
    assert (tmp_path / "tried").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"#!/bin/sh\necho address already in use; exit 1\n", r"already in use"),
        (b"#!/bin/sh\necho something is wrong; exit 3\n", r"exit code 3(?s:.*)something is wrong"),
        (b"\x7fELF nonsense", "could not be started"),
    ],
    ids=["port in use", "exits", "no program"],
)
def test_failed_start_is_reported_with_the_output(program, server, monkeypatch, content, words):
    path = program("")
    Path(path).write_bytes(content)
    monkeypatch.setenv(VARIABLE, path)
    with pytest.raises(EtcdServerError, match=words):
        server.start(timeout=LONG, num_retries=2)


def test_port_stays_reserved_while_server_runs(server):
    """The kernel does not hand the port to other processes, even while etcd is not listening."""
    server.start(timeout=LONG)
    os.kill(server.pid, signal.SIGSTOP)
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("", server.get_port()))


class LogClock:
    """A clock that advances by a minute once the log has content."""

    def __init__(self, log):
        self._log = log

    def now(self):
        return 60.0 if self._log.exists() and self._log.read_text() else 0.0


def test_server_that_never_answers_times_out_with_its_log(program, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, program("echo thinking; exec sleep 600"))
    server = EtcdServer(tmp_path / "data", clock=LogClock(tmp_path / "data" / "etcd.log"))
    begun = time.monotonic()
    with pytest.raises(EtcdServerError, match=r"did not answer in time.*(?s:.*)thinking"):
        server.start(timeout=1)
    assert time.monotonic() - begun < LONG / 2
    assert server.pid == 0


def test_impossible_data_directory_is_bad_configuration(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="data_dir"):
        EtcdServer(tmp_path / "file" / "data").start()


@pytest.fixture
def find(monkeypatch):
    """Finds the binary with the given variables and packaged binary."""

    def found(packaged=None, path="/nonexistent", variable=""):
        monkeypatch.setenv("PATH", str(path))
        monkeypatch.setenv(VARIABLE, str(variable))
        return process.find_binary(lambda: packaged and str(packaged))

    return found


@pytest.mark.unit
def test_missing_binary_error_names_three_remedies(find):
    with pytest.raises(ConfigurationError) as raised:
        find()
    for way in ("TORCHELASTIC_ETCD_BINARY_PATH", "PATH", r"elastic-etcd[server]"):
        assert way in str(raised.value)


@pytest.mark.unit
@pytest.mark.parametrize(("name", "words"), [("missing", "does not exist"), ("", "is a folder")])
def test_variable_that_names_no_file_is_refused(find, tmp_path, name, words):
    with pytest.raises(ConfigurationError, match=words):
        find(variable=tmp_path / name)


@pytest.mark.unit
def test_variable_that_names_no_executable_is_refused(find, program):
    path = program("")
    Path(path).chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod"):
        find(variable=path)


TELLS = 'if [ "$1" = --version ]; then echo "etcd Version: %s"; fi'


def test_variable_takes_precedence_then_the_newest_version(find, folder_with):
    old, new = folder_with("old", TELLS % "3.4.30"), folder_with("new", TELLS % "3.10.1-rc.0")
    silent = folder_with("silent", "exit 1")
    path = f"{old}:{new}:{silent}"
    assert find(path=path, variable=old / "etcd") == (str(old / "etcd"), "3.4.30")
    assert find(silent / "etcd", path) == (str(new / "etcd"), "3.10.1")
    assert find(new / "etcd", old) == (str(new / "etcd"), "3.10.1")
    assert find(old / "etcd", new) == (str(new / "etcd"), "3.10.1")
    assert find(silent / "etcd") == (str(silent / "etcd"), "unknown")


def test_binary_that_hangs_on_version_is_skipped(find, folder_with):
    hangs, old = folder_with("hangs", "exec sleep 600"), folder_with("old", TELLS % "3.4.30")
    assert find(path=f"{hangs}:{old}").path == str(old / "etcd")


def test_world_writable_and_relative_paths_are_skipped(find, folder_with, monkeypatch, tmp_path):
    old, everybodys = folder_with("old", TELLS % "3.4.30"), folder_with("everybodys", TELLS % "3.9.0", mode=0o1777)
    links = tmp_path / "links"
    links.mkdir()
    (links / "etcd").symlink_to(everybodys / "etcd")
    writable = folder_with("writable", TELLS % "3.9.1")
    (writable / "etcd").chmod(0o777)
    monkeypatch.chdir(folder_with("here", TELLS % "3.9.9"))
    found = find(path=f"{everybodys}:{links}:{writable}:.::../here:{old}")
    assert found == (str(old / "etcd"), "3.4.30")
    with pytest.raises(ConfigurationError, match=r"ignoring .*everybodys/etcd, which every user may write to"):
        find(path=everybodys)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("output", "version"),
    [
        (b"etcd Version: 3.5.16\nGit SHA: f20bbadd4\n", "3.5.16"),
        (b"warning\netcd Version: 3.6.0-rc.4\n", "3.6.0"),
        (b"etcd Version: 3.5\n", "unknown"),
        (b"etcd Version: 99999.1.1\n", "unknown"),
        ("etcd Version: ٣.5.1".encode(), "unknown"),
        (b"", "unknown"),
    ],
)
def test_version_is_parsed_from_binary_output(output, version):
    assert version_in(output) == version


def test_server_inherits_no_password_and_its_version_is_logged(capfd, request, monkeypatch):
    log.configure(level="info")
    request.addfinalizer(lambda: log.configure(level="warning"))
    for name, value in {"ELASTIC_ETCD_PASSWORD": "s3cret", "MINE": "s3cret", "GOGC": "50"}.items():
        monkeypatch.setenv(name, value)
    with EtcdServer() as server:
        log_text = capfd.readouterr().err
        given = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
        kept = Path(f"/proc/{psutil.Process(server.pid).ppid()}/environ").read_bytes().split(b"\0")
    assert f"path={binary()} version={version_of(binary())}" in log_text
    assert b"GOGC=50" in given
    assert not any(b"s3cret" in variable for variable in given + kept)


def test_probe_identifies_its_own_server(etcd, listener):
    assert not answers_as("another", etcd.url, LONG)
    assert not answers_as("any", f"http://127.0.0.1:{listener}", timeout=0.2)
    assert answers_as(etcd.name, etcd.url, LONG)


def test_import_of_server_loads_nothing_heavy():
    code = "import sys, elastic_etcd.server; print(sorted({'torch', 'grpc', 'etcd3', 'structlog'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LONG)
    assert done.stdout.strip() == "[]"
