"""LocalWorkers from start to close, with real processes."""

from __future__ import annotations

import os
import re
import select
import signal

import psutil
import pytest
from elastic_testing import eventually

from elastic_core.interfaces.workers import WorkerProcesses
from elastic_core.workers.numa import Binding, Cpu, Machine
from elastic_core.workers.process import thread_sentinel, wait_readable

LONG = 60.0
SLEEP = "import time; time.sleep(600)"
EXIT_BY_RANK = "import os, sys; sys.exit(int(sys.argv[1 + int(os.environ['RANK'])]))"

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("temporary_folder")]


def test_unstarted_workers_implement_the_agent_interface(local_workers, python):
    workers: WorkerProcesses = local_workers(python("pass")).workers
    assert workers.reap() == []
    assert workers.running() == []
    assert workers.leftovers() == []
    assert list(workers.sentinels()) == []
    assert workers.kill(1, "nothing runs") is None
    workers.send_signal(signal.SIGTERM)
    workers.finish()
    workers.close()


def test_successful_round_has_return_values_and_no_failures(local_workers, python, plan):
    rounds = local_workers(python("pass"))
    pids = rounds.start(plan(3))
    assert sorted(pids) == rounds.workers.running() == [0, 1, 2]
    assert len(rounds.workers.sentinels()) == 4  # including the guardian's
    exits = rounds.wait_for_exits(3)
    assert {(e.local_rank, e.pid, e.exitcode) for e in exits} == {(local, pid, 0) for local, pid in pids.items()}
    rounds.finish()
    assert rounds.workers.failures() == {}
    assert rounds.workers.return_values() == {0: None, 1: None, 2: None}


def test_failures_are_keyed_by_global_rank(local_workers, python, plan):
    rounds = local_workers(python("import sys; print('boom', file=sys.stderr); sys.exit(5)"))
    rounds.run(plan(1, first_rank=40, node="n7"))
    [(rank, failure)] = rounds.workers.failures().items()
    assert (rank, failure.global_rank, failure.local_rank, failure.exitcode) == (40, 40, 0, 5)
    assert (failure.node, failure.message, failure.reason) == ("n7", "boom", "exit code 5")
    assert failure.timestamp > 1e9


def test_failure_is_known_before_other_workers_stop(local_workers, python, plan):
    code = "import os, sys, time; sys.exit(5) if os.environ['RANK'] == '1' else time.sleep(600)"
    rounds = local_workers(python(code))
    assert rounds.workers.failures() == {}
    rounds.start(plan(2))
    assert rounds.workers.failures() == {}
    assert [ended.obeyed for ended in rounds.wait_for_exits(1)] == [False]
    assert rounds.workers.running() == [0]
    assert len(rounds.workers.leftovers()) == 1
    assert {rank: failure.reason for rank, failure in rounds.workers.failures().items()} == {1: "exit code 5"}
    rounds.workers.send_signal(signal.SIGTERM)
    assert [ended.obeyed for ended in rounds.wait_for_exits(1)] == [True]
    rounds.finish()
    assert list(rounds.workers.failures()) == [1]


@pytest.mark.parametrize("sentinel", [None, thread_sentinel])
def test_first_failed_worker_is_the_cause(local_workers, python, plan, sentinel):
    code = """
        import os, signal, sys, time
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSEGV)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9 if os.environ["RANK"] == "0" else 143))
        print("ready", flush=True)
        time.sleep(600)
    """
    rounds = local_workers(python(code), sentinel=sentinel)
    rounds.start(plan(4))
    [first] = rounds.wait_for_exits(1)
    assert (first.local_rank, first.exitcode) == (1, -signal.SIGSEGV)
    rounds.workers.send_signal(signal.SIGTERM)
    rounds.wait_for_exits(3)
    rounds.finish()
    failures = rounds.workers.failures()
    assert failures[1].caused_by is None
    assert {rank: f.caused_by for rank, f in failures.items() if rank != 1} in ({}, {0: 1})  # 0 may not be ready yet


def test_oom_kill_is_named_in_the_reason(local_workers, python, plan, tmp_path):
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 1\n")
    rounds = local_workers(python(SLEEP), oom_counters={counter: "here"})
    pids = rounds.start(plan())
    counter.write_text("oom_kill 2\n")
    os.kill(pids[0], signal.SIGKILL)
    rounds.wait_for_exits(1)
    rounds.finish()
    assert "out of memory" in rounds.workers.failures()[0].reason


def test_leftovers_keeps_worker_exits(local_workers, python, plan):
    rounds = local_workers(python("raise SystemExit(4)"))
    (pid,) = rounds.start(plan()).values()
    assert eventually(lambda: not rounds.workers.leftovers())
    assert [(ended.pid, ended.exitcode) for ended in rounds.workers.reap()] == [(pid, 4)]
    rounds.finish()


def test_process_outside_session_is_logged_not_killed(local_workers, python, plan, capsys):
    rounds = local_workers(python("import subprocess; subprocess.run(['sleep', '600'], start_new_session=True)"))
    (worker,) = rounds.start(plan()).values()
    children = psutil.Process(worker).children
    assert eventually(lambda: children() and children()[0].name() == "sleep")
    (left,) = children()
    assert rounds.workers.kill(left.pid, "it hangs") is None
    assert (
        f'timer ignored: pid={left.pid} reason="the process has left its worker\'s session"' in capsys.readouterr().err
    )
    assert left.is_running()
    left.kill()
    rounds.wait_for_exits(1)
    rounds.finish()
    assert "timer ignored" not in capsys.readouterr().err


def test_leftover_processes_are_found_and_have_sentinels(local_workers, python, plan, until):
    code = """
        import os, time
        if os.fork() == 0:
            time.sleep(600)
    """
    rounds = local_workers(python(code))
    rounds.start(plan(2))
    rounds.wait_for_exits(2)
    workers = rounds.workers
    left = workers.leftovers()
    assert len(left) == 2
    assert all("time.sleep" in one.command for one in left)
    until(lambda: {one.state for one in workers.leftovers()} == {"S"}, "both to sleep")
    fds = list(workers.leftover_sentinels())
    assert len(fds) == 2
    workers.send_signal(signal.SIGKILL)
    for fd in fds:
        assert select.select([fd], [], [], LONG)[0]
    while workers.leftovers():
        assert workers.leftover_sentinels() is not None
    assert list(workers.leftover_sentinels()) == []
    wait_readable(workers.drain(), LONG)
    workers.finish()
    assert workers.failures() == {}


def test_rounds_have_separate_failures_and_log_folders(local_workers, python, plan, tmp_path):
    logs = tmp_path / "logs"
    code = """
        import os, sys
        print("round", os.environ["TORCHELASTIC_RESTART_COUNT"])
        sys.exit(int(sys.argv[1]) - int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
    """
    rounds = local_workers(python(code, 1), log_dir=logs, redirects=lambda rank: 3)
    rounds.run(plan(2, first_rank=8, restart_count=0))
    assert set(rounds.workers.failures()) == {8, 9}
    rounds.run(plan(2, first_rank=8, round=2, restart_count=1))
    assert rounds.workers.failures() == {}
    found = sorted(str(path.relative_to(logs)) for path in logs.rglob("*.*") if path.suffix in (".out", ".err"))
    assert found == [f"job/round-{n}/rank-{rank}.{kind}" for n in (1, 2) for rank in (8, 9) for kind in ("err", "out")]
    assert (logs / "latest" / "rank-9.out").read_text() == "round 1\n"


def test_error_file_of_an_earlier_run_is_ignored(local_workers, python, plan, tmp_path):
    folder = tmp_path / "logs" / "job" / "round-1"
    folder.mkdir(parents=True)
    (folder / "rank-0.error.json").write_text('{"message": "long ago"}')
    rounds = local_workers(python("raise SystemExit(1)"), log_dir=tmp_path / "logs")
    rounds.run(plan())
    assert rounds.workers.failures()[0].message == ""


def test_many_rounds_leak_no_descriptor_or_folder(local_workers, python, plan, temporary_folder, open_files):
    rounds = local_workers(python(EXIT_BY_RANK, 0, 3), tee=lambda rank: 3, stdout_filters=("x",))
    rounds.run(plan(2))
    before = open_files()
    for number in range(2, 22):
        rounds.run(plan(2, round=number))
        assert set(rounds.workers.failures()) == {1}
    assert open_files() == before
    assert len(os.listdir(temporary_folder)) == 1
    rounds.workers.close()
    rounds.workers.close()
    assert os.listdir(temporary_folder) == []


def test_close_kills_workers_left_by_finish(local_workers, python, plan, running, until):
    """For example, after an error in the agent itself."""
    rounds = local_workers(python(SLEEP))
    pids = rounds.start(plan(2))
    rounds.workers.finish()
    rounds.workers.close()
    until(lambda: not any(map(running, pids.values())))


def test_daemon_holding_stderr_does_not_delay_the_round(local_workers, python, plan, capfd, clean_up, until):
    """The daemon can keep writing, for example while it uploads a checkpoint; SIGPIPE would kill it."""
    code = """
        import os, signal, sys, time
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            os.write(2, b"daemon %d\\n" % os.getpid())
            os.close(writer)
            while True:
                time.sleep(0.05)
                os.write(2, b"uploading\\n")
        os.close(writer)
        os.read(reader, 1)
    """
    rounds = local_workers(python(code))
    rounds.start(plan())
    rounds.wait_for_exits(1)
    rounds.finish()
    shown = capfd.readouterr().err
    clean_up.append(int(re.search(r"daemon (\d+)", shown).group(1)))
    assert "output lost" not in shown
    for _ in range(3):
        until(lambda: "uploading" in capfd.readouterr().err)


def test_worker_closing_its_streams_keeps_its_message(local_workers, python, plan):
    rounds = local_workers(python("import os, sys; sys.stderr.write('x\\n'); os.close(1); os.close(2); sys.exit(3)"))
    rounds.run(plan(2))
    assert {f.message for f in rounds.workers.failures().values()} == {"x"}


def test_bindings_follow_cuda_visible_devices(local_workers, python, plan, tmp_path):
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    machine = Machine((Cpu(cpus[0], 0, 0, 0, 0), Cpu(cpus[1], 1, 0, 1, 1)), device_nodes=(0, 1))
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    rounds = local_workers(
        python(code),
        binding=Binding("node", machine),
        environment={**os.environ, "CUDA_VISIBLE_DEVICES": "1"},
        redirects=lambda rank: 1,
        log_dir=tmp_path,
    )
    rounds.run(plan())
    assert (tmp_path / "latest/rank-0.out").read_text() == f"[{cpus[1]}]\n"


def test_signal_reaches_a_function_still_starting(local_workers, call, plan, function_module):
    """Spawned interpreters take a while to create their own session."""
    module = function_module("import time\ndef wait():\n    time.sleep(600)\n")
    rounds = local_workers(call(module.wait, method="spawn"))
    rounds.start(plan(2))
    assert len(rounds.workers.leftovers()) == 2
    rounds.workers.send_signal(signal.SIGTERM)
    assert {e.exitcode for e in rounds.wait_for_exits(2)} == {-signal.SIGTERM}


def test_unwritable_filtered_file_names_the_remaining_output(local_workers, python, plan, tmp_path, capfd):
    folder = tmp_path / "logs" / "job" / "round-1"
    folder.mkdir(parents=True)
    (folder / "filtered.out").symlink_to("/dev/full")
    rounds = local_workers(
        python("print('one')"), log_dir=tmp_path / "logs", redirects=lambda rank: 1, stdout_filters=("one",)
    )
    rounds.run(plan())
    shown = capfd.readouterr()
    assert (folder / "rank-0.out").read_text() == "one\n"
    assert shown.out == ""
    assert "later output appears only in the workers' regular output" in shown.err
