"""The guardian as a program, and its work after an agent was killed."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys

import pytest

from elastic_core.workers import sessions

pytestmark = pytest.mark.integration


@pytest.fixture
def guardian():
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", sessions.__file__], stdin=subprocess.PIPE, text=True, bufsize=1
    )
    yield process
    process.kill()
    process.wait()
    process.stdin.close()


def order(guardian, *lines):
    guardian.stdin.write("".join(f"{line}\n" for line in lines))


def test_guardian_removes_workers_and_scratch_at_end_of_input(guardian, tree, tmp_path, until, running):
    leader, found = tree
    folder = tmp_path / "scratch folder"
    (folder / "deep").mkdir(parents=True)
    order(guardian, f"watch {leader.pid} {sessions.start_of(leader.pid)}", "watch 999999999 5")
    order(guardian, "forget 999999999", "forget 7", "nonsense", f"scratch {folder}")
    guardian.stdin.close()
    assert guardian.wait() == 0
    assert leader.wait() == -signal.SIGKILL
    until(lambda: not running(found["grandchild"]))
    assert not folder.exists()


def test_held_descriptors_close_after_the_last_worker(tree, pipe, tmp_path, running, monkeypatch):
    """Before folders are removed, which may take long."""
    leader, found = tree
    reader, held = pipe
    seen = []
    monkeypatch.setattr(sessions.shutil, "rmtree", lambda *_, **__: seen.append(os.read(reader, 1)))
    close = os.close

    def closing(descriptor):
        seen.append(running(leader.pid) or running(found["grandchild"]))
        close(descriptor)

    monkeypatch.setattr(os, "close", closing)
    orders = f"watch {leader.pid} {sessions.start_of(leader.pid)}\nscratch {tmp_path}\n"
    sessions.guard(io.StringIO(orders), held=[held])
    monkeypatch.undo()
    assert seen == [False, b""]
    leader.wait()


@pytest.mark.parametrize(("watched", "ended"), [(False, True), (True, False)])
def test_expected_holder_is_killed_unless_a_worker_is_named(spawn, pipe, running, until, watched, ended):
    holder = spawn("import time; time.sleep(600)")
    orders = f"expect {sessions.link_of(pipe[1])}\n" + "watch 999999999 5\n" * watched
    for end in pipe:
        os.close(end)  # otherwise this process would be found too
    sessions.guard(io.StringIO(orders))
    assert (holder.poll() == -signal.SIGKILL) == ended
    assert (holder.poll() is None) == (not ended)


FORKING = """
import os, signal, sys, time

def fork(number, frame):
    if os.fork() == 0:
        os.write(int(sys.argv[1]), b"%d\\n" % os.getpid())
        time.sleep(600)

signal.signal(signal.SIGUSR1, fork)
os.write(int(sys.argv[1]), b"ready\\n")
while True:
    time.sleep(600)
"""


class ForkingTable(sessions.ProcTable):
    """Makes a process fork right after each of the first three listings, including the one of holders."""

    def __init__(self, forking, forked):
        self.forking = forking
        self.forked = forked
        self.times = 3

    def pids(self):
        found = super().pids()
        if self.times:
            self.times -= 1
            self.forking.send_signal(signal.SIGUSR1)
            self.forked()
        return found


def test_forking_holder_is_killed_with_its_children(spawn, make_pipe, running, lines_of, clean_up, monkeypatch):
    """Like a fork server that has just received an order from the agent."""
    mark, report = make_pipe(), make_pipe()
    for end in (mark[1], report[1]):
        os.set_inheritable(end, True)
    holder = spawn(FORKING, report[1], session=False)  # in the agent's session, like a fork server
    assert lines_of(report[0]) == ["ready"]
    link = sessions.link_of(mark[1])
    for end in mark:
        os.close(end)
    table = ForkingTable(holder, lambda: clean_up.extend(map(int, lines_of(report[0]))))
    monkeypatch.setattr(sessions, "best_table", lambda: table)
    sessions.guard(io.StringIO(f"expect {link}\n"))
    assert holder.wait() == -signal.SIGKILL
    assert len(clean_up) == 3
    assert not any(map(running, clean_up))


def ignores(pid, signum):
    with open(f"/proc/{pid}/status") as file:
        mask = next(line.split()[1] for line in file if line.startswith("SigIgn"))
    return bool(int(mask, 16) >> (signum - 1) & 1)


def test_guardian_survives_signals_that_stop_an_agent(guardian, tree, until, running):
    leader, _ = tree
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    until(lambda: all(ignores(guardian.pid, signum) for signum in asked), "the guardian to be ready")
    for signum in asked:
        guardian.send_signal(signum)
    order(guardian, f"watch {leader.pid} {sessions.start_of(leader.pid)}")
    assert guardian.poll() is None
    guardian.stdin.close()
    assert guardian.wait() == 0
    assert leader.wait() == -signal.SIGKILL


KILLED_AT_A_START = """
import os, signal, sys, time
from elastic_core.interfaces.workers import RoundPlan, WorkerRanks
from elastic_core.workers.functions import FunctionStarter
from elastic_core.workers.group import GroupPolicy, LocalWorkers
from elastic_core.workers.process import CommandStarter

class Killing:
    def __init__(self, starter):
        self.starter = starter

    def start(self, launch):
        assert os.listdir(os.environ["TMPDIR"])  # the scratch folder
        child = self.starter.start(launch)
        print(child.pid, flush=True)
        if launch.local_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return child

method = sys.argv[1]
function = method != "subprocess"
starter = FunctionStarter(time.sleep, (600,), method) if function else CommandStarter(("sleep", "600"))
ranks = (WorkerRanks(0, 0, 0), WorkerRanks(1, 1, 1), WorkerRanks(2, 2, 2))
plan = RoundPlan(1, "job", "here", "default", 0, 1, 3, 3, "127.0.0.1", 1, False, 0, 0, ranks)
LocalWorkers(Killing(starter), GroupPolicy(), dict(os.environ)).start(plan)
"""


@pytest.mark.parametrize("method", ["subprocess", "fork", "spawn", "forkserver"])
def test_worker_being_started_dies_with_a_killed_agent(method, tmp_path, until, running, clean_up):
    """Between the start of the process and the order that gives the guardian its id. No process keeps the agent's
    stdout open, and the scratch folder is removed."""
    command = [sys.executable, "-c", KILLED_AT_A_START, method]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    agent = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=180)
    pids = list(map(int, agent.stdout.split()))
    clean_up += pids
    assert (agent.returncode, len(pids)) == (-signal.SIGKILL, 2)
    until(lambda: not any(map(running, pids)), f"{pids} to die")
    until(lambda: not any(tmp_path.glob("elastic-*")), "the scratch folder to go")


GUARDING = """
import os, sys
from elastic_core.workers.group import GroupPolicy, LocalWorkers
from elastic_core.workers.process import CommandStarter
workers = LocalWorkers(CommandStarter(("true",)), GroupPolicy(), dict(os.environ))
workers.guard(sys.argv[1:])
print("guarded", flush=True)
sys.stdin.read()
workers.close()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_guarded_folders_are_removed_without_any_worker(killed, until, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        (folder / "deep").mkdir(parents=True)
    command = [sys.executable, "-c", GUARDING, *map(str, folders)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdout.readline() == b"guarded\n"
        assert len(os.listdir(tmp_path)) == 2
        if killed:
            agent.kill()
    until(lambda: os.listdir(tmp_path) == [], "the folders to go")
