"""Runs of the real `elastic` command. Each is marked, so that all processes that it leaves behind are found, reported
and ended.

The end-to-end tests and the plugins' tests that run jobs use these fixtures.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from job_of_nodes import Job
from warm import Forked, WarmPython, reads_the_same

MARK = "ELASTICTEST_MARK"  # not ELASTIC_*, which would be read as a setting


@dataclass(frozen=True)
class Completed:
    code: int
    out: str
    err: str


def living_with(mark: str) -> list[str]:
    """Processes whose environment carries the mark, zombies excluded: `pid command`."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment and state not in "ZX":
            found.append(f"{folder.name} {command}")
    return found


for signum in (signal.SIGINT, signal.SIGHUP):
    # A test runner in the background or under nohup has these signals ignored, which children inherit; handlers they do
    # not. (preexec_fn would fork, and if this process has used gRPC, its fork handlers may abort the child.)
    if signal.getsignal(signum) is signal.SIG_IGN:
        signal.signal(signum, lambda *_: None)


class Elastic:
    """Runs `elastic` as users do. Workers write under `cwd`; the checkout is not on the path."""

    def __init__(self, cwd: Path, warm: WarmPython) -> None:
        self.cwd = cwd
        self.mark = uuid.uuid4().hex
        self.started: list[Any] = []
        self._warm = warm
        self.through: list[str] = []  # prefix of commands started to files from now on, such as `ip netns exec`

    def script(self, name: str, code: str) -> str:
        path = self.cwd / name
        path.write_text(textwrap.dedent(code))
        return str(path)

    def start(self, *args: str, stdin: int = subprocess.DEVNULL, **environment: str) -> subprocess.Popen[str]:
        return self.program(sys.executable, "-m", "elastic_core", *args, stdin=stdin, **environment)

    def program(self, *command: str, stdin: int = subprocess.DEVNULL, **environment: str) -> subprocess.Popen[str]:
        """Like `start`, for another program."""
        process = subprocess.Popen(
            command,
            cwd=self.cwd,
            env=self._environment(environment),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def fork(self, *args: str, **environment: str) -> Forked:
        """Like `start`, but forked from the warm Python, for commands that need torch."""
        pipe = subprocess.PIPE
        words = ("-m", "elastic_core", *args)
        self.started.append(self._warm.start(words, self.cwd, self._environment(environment), stdout=pipe, stderr=pipe))
        return self.started[-1]

    def start_to_files(self, name: str, *args: str, **environment: str) -> subprocess.Popen[bytes] | Forked:
        """Like `start`, with the output in NAME.out and NAME.err; also for a program whose first argument ends in .py.
        Forked from the warm Python if that makes no difference."""
        env = self._environment(environment)
        words = args if args[0].endswith(".py") else ("-m", "elastic_core", *args)
        with open(self.cwd / f"{name}.out", "ab") as out, open(self.cwd / f"{name}.err", "ab") as err:
            if words[0] == "-m" and not self.through and reads_the_same(env):
                self.started.append(self._warm.start(words, self.cwd, env, stdout=out, stderr=err))
            else:
                command = [*self.through, sys.executable, *words]
                null = subprocess.DEVNULL
                self.started.append(
                    subprocess.Popen(command, cwd=self.cwd, env=env, stdin=null, stdout=out, stderr=err)
                )
        return self.started[-1]

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ELASTIC_", "PET_"))}
        return {"RES_OPTIONS": "timeout:1 attempts:1", **kept, MARK: self.mark, **more}

    def finish(self, process: subprocess.Popen[str] | Forked, timeout: float = 180) -> Completed:
        out, err = process.communicate(timeout=timeout)
        return Completed(process.returncode, out, err)

    def living(self) -> list[str]:
        """All processes that it started, directly or not, and that still run."""
        return living_with(self.mark)

    def run(self, *args: str, timeout: float = 180, **environment: str) -> Completed:
        return self.finish(self.start("run", *args, **environment), timeout)


@pytest.fixture
def elastic(tmp_path, warm):
    runner = Elastic(tmp_path, warm)
    yield runner
    for process in runner.started:
        if process.poll() is None:
            process.kill()
        process.wait(60)
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            pipe.close()
    left = runner.living()
    for line in left:
        os.kill(int(line.split()[0]), signal.SIGKILL)
    assert not left, f"orphans: {left}"


@pytest.fixture
def machines():
    """`machines(n)` creates n machines, each a network namespace."""
    from elastic_testing.machines import Machines, missing

    if why := missing():
        assert not os.environ.get("CI"), why
        pytest.skip(why)
    made = []

    def make(count: int) -> Machines:
        made.append(Machines(count))
        return made[-1]

    yield make
    for some in made:
        some.close()


@pytest.fixture
def job(elastic):
    """A job of several nodes over the backend c10d."""
    return Job(elastic.start_to_files, elastic.cwd)


@pytest.fixture(scope="session")
def etcd_endpoint():
    """The endpoint of an etcd server that all tests share."""
    from elastic_etcd import EtcdServer

    with EtcdServer() as server:
        yield server.get_endpoint()


@pytest.fixture(params=["c10d", "etcd"])
def any_job(request, elastic, tmp_path):
    """A job of several nodes over each backend that forms rounds."""
    if request.param == "c10d":
        return Job(elastic.start_to_files, elastic.cwd)
    endpoint = request.getfixturevalue("etcd_endpoint")
    prefix = f"{tmp_path.parent.name}-{tmp_path.name}"  # not used by another test
    return Job(elastic.start_to_files, elastic.cwd, request.param, endpoint, prefix=prefix)


@pytest.fixture
def read_fifo(tmp_path):
    """`fifo, read`: workers write lines into the named pipe; `read(n)` waits for n lines. It needs no polling."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)  # both ends, so that no open blocks and no reader sees an early end
    buffer = bytearray()

    def read(lines: int, timeout: float = 90) -> list[str]:
        import select

        while buffer.count(b"\n") < lines:
            assert select.select([fd], [], [], timeout)[0], f"expected {lines} lines, found {bytes(buffer)!r}"
            buffer.extend(os.read(fd, 65536))
        found = buffer.decode().splitlines()
        buffer.clear()
        return found

    yield str(path), read
    os.close(fd)
