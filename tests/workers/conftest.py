"""Fixtures for real workers: plans, starters, complete rounds and bounded waits."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading

import pytest
from elastic_testing import eventually
from elastic_testing.campaign.stage import lives

from elastic_core.interfaces.workers import RoundPlan, WorkerRanks
from elastic_core.workers.functions import FunctionStarter
from elastic_core.workers.group import GroupPolicy, LocalWorkers
from elastic_core.workers.process import CommandStarter, EnvironmentPolicy
from elastic_core.workers.sessions import best_table
from elastic_core.workers.streams import OutputPolicy

# A leader and an orphaned grandchild; both report their ids through the pipe in argv[1].
TREE = """
import os, sys, time
report = int(sys.argv[1])
if os.fork() == 0:
    if os.fork() == 0:
        os.write(report, b"grandchild %d\\n" % os.getpid())
        time.sleep(600)
    os._exit(0)
os.wait()
os.write(report, b"leader %d\\n" % os.getpid())
time.sleep(600)
"""

LONG = 60.0  # seconds after which a test gives up; nothing here takes that long


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


def read_lines(fd, count=1):
    """Wait for `count` lines from a pipe and return them."""
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
    return lambda condition, what="the condition": eventually(condition, LONG, what)


@pytest.fixture
def running():
    return lives


@pytest.fixture
def lines_of():
    return read_lines


def descriptors():
    """The open descriptors of this process: number -> device and inode."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            status = os.fstat(fd)
        except OSError:
            continue  # the descriptor used to list the folder
        found[fd] = (status.st_dev, status.st_ino)
    return found


def helpers():
    """The threads that move output and wait for exits; they have their own descriptors."""
    return {thread for thread in threading.enumerate() if thread.name == "output" or thread.name.startswith("wait-")}


@pytest.fixture
def helpers_gone():
    """A function that waits until the helper threads started by the test have ended."""
    before = helpers()
    return lambda: eventually(lambda: helpers() <= before, LONG, "the threads to end")


@pytest.fixture
def open_files():
    """A function that returns the open descriptors, once earlier tests have closed theirs."""
    gc.collect()
    best_table()  # keeps a descriptor open from its first use on
    for thread in helpers():
        thread.join(1.0)  # a stuck thread closes nothing
    return descriptors


@pytest.fixture
def few_files():
    """A context manager in which only so many descriptors are free."""

    @contextlib.contextmanager
    def few_files(left):
        gc.collect()  # torch's FileStore aborts the process if one is collected while no descriptor is free
        used = descriptors()
        limit = next(limit for limit in itertools.count() if limit - sum(fd < limit for fd in used) == left + 1) - 1
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    return few_files


@pytest.fixture
def make_pipe():
    """A function that makes a pipe, `(read end, write end)`; ends still open are closed afterwards."""
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
    """Close a descriptor unless its number has been reused."""
    try:
        if os.fstat(fd).st_ino == inode:
            os.close(fd)
    except OSError:
        pass


@pytest.fixture
def pipe(make_pipe):
    """A pipe, `(read end, write end)`, whose write end children inherit."""
    reader, writer = make_pipe()
    os.set_inheritable(writer, True)
    return reader, writer


@pytest.fixture
def spawn():
    """A function that starts Python code in its own session and returns the Popen; all are killed at the end.

    The arguments become `sys.argv[1:]`.
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
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
        process.kill()  # does nothing if it was waited for: its number may have been reused
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()


@pytest.fixture
def tree(spawn, pipe, lines_of):
    leader = spawn(TREE, pipe[1])
    return leader, {name: int(pid) for name, pid in map(str.split, lines_of(pipe[0], 2))}


@pytest.fixture
def clean_up():
    """A list of process ids to kill at the end, for processes that leave their session on purpose."""
    pids = []
    yield pids
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass


class Rounds:
    """LocalWorkers with a minimal agent loop."""

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
        """Run a whole round and return the exits in order."""
        self.start(plan)
        exits = self.wait_for_exits(len(plan.ranks))
        self.finish()
        return exits

    def finish(self):
        """Wait for the output, then release the round, as the agent does."""
        done = self.workers.drain()
        if done is not None:
            select.select([done], [], [], LONG)
        self.workers.finish()


@pytest.fixture
def python():
    """A function that makes a starter for Python code and its arguments."""

    def python(code, *args):
        return CommandStarter((sys.executable, "-u", "-S", "-c", textwrap.dedent(code), *map(str, args)))

    return python


class Watched:
    """A starter whose workers have the sentinel that `sentinel` opens for their process id."""

    def __init__(self, starter, sentinel):
        self._starter = starter
        self._sentinel = sentinel

    def __getattr__(self, name):
        return getattr(self._starter, name)

    def start(self, launch):
        child = self._starter.start(launch)
        child.own_sentinel = lambda: self._sentinel(child.pid)
        return child


@pytest.fixture
def local_workers():
    """A function that makes LocalWorkers; other keywords go to OutputPolicy."""
    made = []

    def local_workers(
        starter,
        binding=None,
        virtual_local_rank=False,
        environment=None,
        oom_counters=None,
        sentinel=None,
        faulthandler=False,
        progress=(),
        **output,
    ):
        own = EnvironmentPolicy(virtual_local_rank, faulthandler)
        policy = GroupPolicy(OutputPolicy(**output), own, binding, frozenset(progress))
        given = dict(os.environ) if environment is None else environment
        watched = Watched(starter, sentinel) if sentinel else starter
        workers = LocalWorkers(watched, policy, given, counters=lambda: oom_counters or {})
        made.append(workers)
        return Rounds(workers)

    yield local_workers
    for workers in made:
        workers.send_signal(signal.SIGKILL)
        workers.finish()
        workers.close()


@pytest.fixture
def temporary_folder(tmp_path, monkeypatch):
    """The parent of all scratch folders, so that a test can see what is left."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def handle():
    """A function that installs a signal handler; the previous handlers are restored afterwards."""
    before = {}

    def handle(signum, handler):
        before.setdefault(signum, signal.getsignal(signum))
        signal.signal(signum, handler)

    yield handle
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.fixture
def function_module(tmp_path, monkeypatch):
    """A function that writes a module which children can import, imports it and returns it."""
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
    """A function that makes a FunctionStarter with the given start method."""

    def call(function, *args, method="fork"):
        return FunctionStarter(function, args, method)

    return call


@pytest.fixture
def spy(tmp_path):
    """A function that installs a shell script as py-spy and returns an environment in which it is found."""

    def spy(script):
        path = tmp_path / "py-spy"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    return spy
