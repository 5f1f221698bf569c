"""Real workers for tests: plans, starters, rounds that run to their end, and bounded waits."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from elastic_core.interfaces.workers import RoundPlan, WorkerRanks
from elastic_core.workers.environment import EnvironmentPolicy
from elastic_core.workers.functions import FunctionStarter
from elastic_core.workers.group import GroupPolicy, LocalWorkers
from elastic_core.workers.numa import NO_BINDING
from elastic_core.workers.starters import CommandStarter
from elastic_core.workers.streams import OutputPolicy

LONG = 30.0  # seconds after which a test gives up; nothing here takes that long


def make_plan(workers=1, first_rank=0, **changes):
    fields = {
        "round": 1,
        "run_id": "job",
        "node": "here",
        "role": "default",
        "group_rank": 0,
        "group_world_size": 1,
        "world_size": first_rank + workers,
        "role_world_size": first_rank + workers,
        "master_addr": "127.0.0.1",
        "master_port": 29500,
        "use_agent_store": False,
        "restart_count": 0,
        "max_restarts": 0,
        "ranks": tuple(WorkerRanks(local, first_rank + local, first_rank + local) for local in range(workers)),
    }
    return RoundPlan(**{**fields, **changes})


def wait_until(condition, what="the condition"):
    """Bounded: look, and look again a little later. For what no file descriptor tells."""
    deadline = time.monotonic() + LONG
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited {LONG} s for {what}"
        time.sleep(0.005)
    return result


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def read_lines(fd, count=1):
    """Lines from a pipe, waiting for them."""
    data = b""
    while data.count(b"\n") < count:
        assert select.select([fd], [], [], LONG)[0], f"waited {LONG} s for a line, found only {data!r}"
        chunk = os.read(fd, 65536)
        assert chunk, f"the pipe ended after {data!r}"
        data += chunk
    return data.decode().splitlines()


@pytest.fixture
def plan():
    return make_plan


@pytest.fixture
def until():
    return wait_until


@pytest.fixture
def running():
    return is_running


@pytest.fixture
def lines_of():
    return read_lines


@pytest.fixture
def make_pipe():
    """A function that makes a pipe, `(read end, write end)`, closed at the end as far as the test has not done so."""
    made = []

    def make_pipe():
        ends = os.pipe()
        made.append((os.fstat(ends[0]).st_ino, ends))
        return ends

    yield make_pipe
    for inode, ends in made:
        for fd in ends:
            close_if_it_is(fd, inode)


def close_if_it_is(fd, inode):
    """The number of a descriptor that was closed may be somebody else's by now."""
    try:
        if os.fstat(fd).st_ino == inode:
            os.close(fd)
    except OSError:
        pass


@pytest.fixture
def pipe(make_pipe):
    """A pipe whose write end children inherit; `(read end, write end)`, closed at the end."""
    reader, writer = make_pipe()
    os.set_inheritable(writer, True)
    return reader, writer


@pytest.fixture
def spawn():
    """A function that starts Python code in a session of its own and returns the Popen; all are killed at the end.

    The code finds `sys.argv[1:]`.
    """
    started = []

    def spawn(code, *args, session=True, **options):
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", textwrap.dedent(code), *map(str, args)],
            start_new_session=session,
            close_fds=False,
            **options,
        )
        started.append(process)
        return process

    yield spawn
    for process in started:
        for kill in (os.killpg, os.kill):
            try:
                kill(process.pid, signal.SIGKILL)
            except OSError:
                pass
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()


@pytest.fixture
def clean_up():
    """A list of process ids to kill at the end, for those that leave every session on purpose."""
    pids = []
    yield pids
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass


class Rounds:
    """LocalWorkers with the loop that an agent has around them."""

    def __init__(self, workers):
        self.workers = workers

    def start(self, plan):
        return self.workers.start(plan)

    def wait_for_exits(self, count):
        exits = []
        while len(exits) < count:
            assert select.select(list(self.workers.sentinels()), [], [], LONG)[0], f"waited {LONG} s, found {exits}"
            exits += self.workers.reap()
        return exits

    def run(self, plan):
        """A round to its end; the exits in order."""
        self.start(plan)
        exits = self.wait_for_exits(len(plan.ranks))
        self.finish()
        return exits

    def finish(self):
        """As the agent does: wait for the output, then release the round."""
        done = self.workers.drain()
        if done is not None:
            select.select([done], [], [], LONG)
        self.workers.finish()


@pytest.fixture
def python():
    """A starter for Python code; the arguments follow it."""

    def python(code, *args):
        return CommandStarter((sys.executable, "-u", "-S", "-c", textwrap.dedent(code), *map(str, args)))

    return python


@pytest.fixture
def local_workers():
    """A function that makes LocalWorkers, closed at the end. Keywords of OutputPolicy go to it."""
    made = []

    def local_workers(
        starter,
        binding=NO_BINDING,
        virtual_local_rank=False,
        environment=None,
        oom_counters=(),
        sentinel=None,
        faulthandler=False,
        progress=(),
        **output,
    ):
        own = EnvironmentPolicy(virtual_local_rank, faulthandler)
        policy = GroupPolicy(OutputPolicy(**output), own, binding, frozenset(progress))
        given = dict(os.environ) if environment is None else environment
        workers = LocalWorkers(starter, policy, given, open_sentinel=sentinel, oom_counters=oom_counters)
        made.append(workers)
        return Rounds(workers)

    yield local_workers
    for workers in made:
        workers.send_signal(signal.SIGKILL)
        workers.finish()
        workers.close()


@pytest.fixture
def function_module(tmp_path, monkeypatch):
    """A function that writes a module which children can import, and returns it imported."""
    import importlib

    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def function_module(source):
        name = f"elastic_test_functions_{abs(hash((str(tmp_path), source)))}"
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        return importlib.import_module(name)

    return function_module


@pytest.fixture
def call():
    """A function starter by method name."""

    def call(function, *args, method="fork"):
        return FunctionStarter(function, args, method)

    return call
