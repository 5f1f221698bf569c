"""The processes of a worker, in real process trees."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys

import pytest

from elastic_core.workers import sessions

pytestmark = pytest.mark.integration

SLEEP = "import time; time.sleep(600)"


def ids(lines):
    return {name: int(pid) for name, pid in map(str.split, lines)}


def leaders_of(*processes):
    return {process.pid: sessions.start_of(process.pid) for process in processes}


def pids_of(stats):
    return {stat.pid for stat in stats}


def test_stat_names_state_group_session_and_start():
    stat = sessions.ProcTable().stat(os.getpid())
    assert stat.pid == os.getpid()
    assert stat.group == os.getpgid(0)
    assert stat.session == os.getsid(0)
    assert stat.threads >= 1
    assert stat.start == sessions.start_of(os.getpid()) > 0
    assert not stat.ended


def test_stat_survives_names_with_spaces_and_parentheses(spawn, pipe, lines_of):
    code = "import os, time; open('/proc/self/comm', 'w').write(') S 1 (x'); os.write({}, b'ok\\n'); time.sleep(600)"
    process = spawn(code.format(pipe[1]))
    lines_of(pipe[0])
    assert sessions.ProcTable().stat(process.pid).session == process.pid


def test_ended_process_has_no_stat(spawn):
    process = spawn("pass")
    process.wait()
    assert sessions.ProcTable().stat(process.pid) is None
    assert sessions.start_of(process.pid) == 0
    assert sessions.command_of(process.pid) == ""
    assert sessions.waits_in(process.pid) == ""


def test_command_and_wait_channel_are_readable(spawn, pipe, lines_of, until):
    process = spawn(f"import os; os.write({pipe[1]}, b'!\\n'); {SLEEP}", "an argument")
    lines_of(pipe[0])
    assert "an argument" in sessions.command_of(process.pid)
    assert isinstance(sessions.waits_in(process.pid), str)


def test_members_include_reparented_grandchildren(tree):
    leader, found = tree
    assert pids_of(sessions.members(leaders_of(leader))) == {leader.pid, found["grandchild"]}


def test_members_outlive_their_leader(tree):
    leader, found = tree
    leaders = leaders_of(leader)
    leader.kill()
    leader.wait()
    assert pids_of(sessions.members(leaders)) == {found["grandchild"]}
    sessions.end(leaders)
    assert sessions.members(leaders) == []


def test_zombies_are_not_members(spawn):
    process = spawn("pass")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert sessions.ProcTable().stat(process.pid).ended
    assert sessions.members(leaders_of(process)) == []


def test_process_with_ended_main_thread_is_a_member(spawn, pipe, lines_of, until):
    exit_thread = {"x86_64": 60, "aarch64": 93}.get(os.uname().machine)
    if exit_thread is None:
        pytest.skip("unknown system call number on this architecture")
    code = f"""
        import ctypes, os, threading, time
        threading.Thread(target=time.sleep, args=(600,)).start()
        os.write({pipe[1]}, b"up\\n")
        ctypes.CDLL(None).syscall({exit_thread}, 0)
    """
    process = spawn(code)
    lines_of(pipe[0])
    until(lambda: sessions.ProcTable().stat(process.pid).state == "Z", "the first thread to end")
    leaders = leaders_of(process)
    assert pids_of(sessions.members(leaders)) == {process.pid}
    sessions.end(leaders)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_the_whole_tree(tree, until, running, signum):
    leader, found = tree
    sessions.send_all(leaders_of(leader), signum)
    assert leader.wait() == -signum
    until(lambda: not running(found["grandchild"]), "the grandchild to die")


def test_signals_reach_other_process_groups_of_the_session(spawn, pipe, lines_of, until, running):
    code = """
        import os, sys, time
        if os.fork() == 0:
            os.setpgid(0, 0)
            os.write(int(sys.argv[1]), b"moved %d\\n" % os.getpid())
        time.sleep(600)
    """
    leader = spawn(code, pipe[1])
    moved = ids(lines_of(pipe[0]))["moved"]
    assert os.getpgid(moved) == moved
    sessions.send_all(leaders_of(leader), signal.SIGTERM)
    assert leader.wait() == -signal.SIGTERM
    until(lambda: not running(moved), "the process in the other group to die")


def test_process_in_its_own_session_is_left_alone(spawn, pipe, lines_of, running, clean_up):
    code = """
        import os, sys, time
        if os.fork() == 0:
            os.setsid()
            os.write(int(sys.argv[1]), b"daemon %d\\n" % os.getpid())
        time.sleep(600)
    """
    leader = spawn(code, pipe[1])
    daemon = ids(lines_of(pipe[0]))["daemon"]
    clean_up.append(daemon)
    leaders = leaders_of(leader)
    assert pids_of(sessions.members(leaders)) == {leader.pid}
    sessions.end(leaders)
    assert leader.wait() == -signal.SIGKILL
    assert running(daemon)


@pytest.mark.parametrize("table", [sessions.ProcTable, sessions.ProcessIds])
def test_leader_before_its_setsid_is_signaled(spawn, table, monkeypatch):
    monkeypatch.setattr(sessions, "best_table", table)
    process = spawn(SLEEP, session=False)
    assert os.getsid(process.pid) != process.pid
    leaders = leaders_of(process)
    assert pids_of(sessions.members(leaders)) == {process.pid}
    sessions.send_all(leaders, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


@pytest.mark.parametrize("difference", [-1, 1], ids=["recycled", "older than the worker"])
def test_unrelated_process_with_reused_pid_is_spared(tree, running, difference):
    leader, found = tree
    leaders = {leader.pid: sessions.start_of(leader.pid) + difference}
    assert sessions.members(leaders) == []
    sessions.send_all(leaders, signal.SIGKILL)
    sessions.end(leaders)
    assert running(leader.pid)
    assert running(found["grandchild"])


def test_process_older_than_its_ended_leader_is_spared(tree, running):
    leader, found = tree
    leaders = {leader.pid: sessions.start_of(found["grandchild"]) + 1}
    leader.kill()
    leader.wait()
    assert sessions.members(leaders) == []
    assert running(found["grandchild"])


@pytest.mark.parametrize("table", [sessions.ProcTable, sessions.ProcessIds])
def test_ended_leader_has_no_members_and_can_be_signaled(spawn, table, monkeypatch):
    monkeypatch.setattr(sessions, "best_table", table)
    process = spawn("pass")
    leaders = leaders_of(process)
    process.wait()
    assert sessions.start_of(process.pid) == 0
    assert sessions.members(leaders) == []
    sessions.send(process.pid, signal.SIGTERM)
    sessions.send_group(process.pid, signal.SIGTERM)
    sessions.send_all(leaders, signal.SIGTERM)
    sessions.end(leaders)


def test_fork_bomb_is_killed(spawn, pipe, lines_of):
    code = """
        import os, sys, time
        os.write(int(sys.argv[1]), b"begun\\n")
        for _ in range(500):
            if os.fork() == 0:
                os.getpid() % 3 or os.setpgid(0, 0)
                time.sleep(600)
        time.sleep(600)
    """
    leader = spawn(code, pipe[1])
    lines_of(pipe[0])
    leaders = leaders_of(leader)
    sessions.end(leaders)
    assert sessions.members(leaders) == []


WITH_A_HELPER = """
    import os, signal, sys, time
    reader, writer = os.pipe()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        os.close(writer)
        os.write(int(sys.argv[1]), b"ready\\n")
        os.read(reader, 1)
        time.sleep({stays})
        os.write(int(sys.argv[1]), b"cleaned up\\n")
        os._exit(0)
    os.fork()
    time.sleep(600)
"""


def test_helper_has_time_to_clean_up_after_workers(spawn, pipe, lines_of):
    """Like multiprocessing's resource tracker, it waits until its pipe has no other holder."""
    leader = spawn(WITH_A_HELPER.format(stays=0), pipe[1])
    assert lines_of(pipe[0]) == ["ready"]
    leaders = leaders_of(leader)
    sessions.end(leaders)
    assert sessions.members(leaders) == []
    assert lines_of(pipe[0]) == ["cleaned up"]


def test_lingering_helper_is_killed(spawn, pipe, lines_of):
    leader = spawn(WITH_A_HELPER.format(stays=600), pipe[1])
    lines_of(pipe[0])
    leaders = leaders_of(leader)
    sessions.end(leaders)
    assert sessions.members(leaders) == []


def test_leader_ignoring_signals_is_not_a_helper(spawn, pipe, lines_of):
    code = f"""
        import os, signal, sys, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(int(sys.argv[1]), b"ready\\n")
        {SLEEP}
    """
    leader = spawn(code, pipe[1])
    lines_of(pipe[0])
    assert not sessions.kill_all_but_helpers(leaders_of(leader))
    assert leader.wait() == -signal.SIGKILL


# -- systems without /proc


@pytest.fixture
def no_proc(monkeypatch):
    monkeypatch.setattr(sessions, "best_table", sessions.ProcessIds)


def test_members_without_proc_are_leaders_and_their_groups(tree, until, running, no_proc):
    leader, found = tree
    leaders = leaders_of(leader)
    assert leaders == {leader.pid: sessions.UNKNOWN}
    assert pids_of(sessions.members(leaders)) == {leader.pid}
    leader.kill()
    leader.wait()
    assert pids_of(sessions.members(leaders)) == {leader.pid}  # its process group still exists
    sessions.send_all(leaders, signal.SIGKILL)
    until(lambda: not running(found["grandchild"]), "the grandchild to die")


def test_start_times_are_trusted_without_proc(spawn, no_proc):
    leader = spawn(SLEEP)
    start = sessions.ProcTable().stat(leader.pid).start
    sessions.guard(io.StringIO(f"watch {leader.pid} {start}\n"))
    assert leader.wait() == -signal.SIGKILL


HIDDEN = """
import subprocess, sys
from elastic_core.workers import sessions
assert sessions.start_of(1) == sessions.UNKNOWN, sessions.best_table()
worker = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
sessions.end({worker.pid: sessions.start_of(worker.pid)})
print(worker.wait())
"""


def test_workers_are_killed_with_an_empty_proc():
    hide = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    if subprocess.run([*hide, "true"], capture_output=True).returncode != 0:
        pytest.skip("/proc cannot be hidden here")
    done = subprocess.run([*hide, sys.executable, "-c", HIDDEN], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("-9\n", "")


def test_leader_of_finds_the_worker_of_a_process(spawn, pipe, lines_of):
    code = """
        import os, sys, time
        child = os.fork()
        if child:
            os.write(int(sys.argv[1]), b"%d\\n" % child)
        time.sleep(600)
    """
    leader = spawn(code, pipe[1])
    child = int(lines_of(pipe[0])[0])
    leaders = leaders_of(leader)
    assert sessions.leader_of(leader.pid, leaders) == leader.pid
    assert sessions.leader_of(child, leaders) == leader.pid
    assert sessions.leader_of(os.getpid(), leaders) is None
    assert sessions.leader_of(2**22 + 1, leaders) is None
    stale = {leader.pid: leaders[leader.pid] - 1}  # an earlier process had this number
    assert sessions.leader_of(leader.pid, stale) is None
    assert sessions.leader_of(child, stale) is None
    leader.kill()
    wait = os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    assert wait is not None
    assert sessions.leader_of(leader.pid, leaders) is None  # the leader has ended
    assert sessions.leader_of(child, leaders) == leader.pid
    os.kill(child, 9)


NO_DESCRIPTOR = """
import os, subprocess, sys
from elastic_core.workers import sessions

worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
try:
    while True:
        os.dup(0)
except OSError:
    pass
leaders = {worker.pid: sessions.UNKNOWN}
assert [stat.pid for stat in sessions.members(leaders)] == [worker.pid]
sessions.end(leaders)
assert worker.wait(60) == -9
"""


def test_workers_are_found_and_killed_without_a_free_descriptor():
    """Another thread may have taken the spare descriptor. The agent once ended with an internal error."""
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)){NO_DESCRIPTOR}"
    assert subprocess.run([sys.executable, "-c", limited], timeout=100).returncode == 0
