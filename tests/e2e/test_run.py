"""The single-node uses of torchrun, with `elastic run`."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import psutil
import pytest
from job_of_nodes import eventually

# Waits for a blocked signal; a handler could run inside a print, or just before the wait.
WAIT_FOR_SIGNAL = """
import os, signal, sys, time
signals = {{signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
fifo = os.open({fifo!r}, os.O_WRONLY)
os.write(fifo, b"ready\\n")
number = signal.sigwait(signals)
os.write(fifo, b"got %d\\n" % number)
{then}
"""
SHOW = "import os, sys; print(' '.join(os.environ[n] for n in sys.argv[1:]))\n"


def lines(text):
    return sorted(text.splitlines())


def test_workers_see_the_documented_environment(elastic):
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK ROLE_NAME MASTER_ADDR TORCHELASTIC_RESTART_COUNT"
    done = elastic.run("--nproc_per_node", "2", "--role=trainer", elastic.script("show.py", SHOW), *names.split())
    assert done.code == 0
    assert lines(done.out) == ["0 0 2 2 0 trainer 127.0.0.1 0", "1 1 2 2 0 trainer 127.0.0.1 0"]


def test_module_command_and_run_path_are_started(elastic):
    (elastic.cwd / "pack").mkdir()
    (elastic.cwd / "pack" / "__main__.py").write_text("import sys; print('module', sys.argv[1:])\n")
    assert elastic.run("-m", "pack", "--x", "1").out == "module ['--x', '1']\n"
    assert elastic.run("--no-python", "sh", "-c", "echo rank $RANK of $WORLD_SIZE").out == "rank 0 of 1\n"
    script = elastic.script("path.py", "import sys; print(__name__, sys.argv[1:])\n")
    assert elastic.run("--run-path", script, "--y").out == "__main__ ['--y']\n"


def test_script_is_read_from_standard_input(elastic):
    process = elastic.start("run", "-", "--x", stdin=subprocess.PIPE)
    out, err = process.communicate("import sys; print(sys.argv)", timeout=60)
    assert (process.returncode, out) == (0, "['-', '--x']\n"), err


WAITS_FOR_LIMIT = """
import resource, time
end = time.monotonic() + 60
while resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 60 and time.monotonic() < end:
    time.sleep(0.01)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_low_file_limit_bounds_no_workers_and_is_kept(elastic):
    """The agent needs several descriptors for each worker."""
    script = elastic.script("train.py", WAITS_FOR_LIMIT)
    agent = f"{sys.executable} -m elastic_core run --standalone --nproc-per-node=16 --log-dir=logs --tee=3 {script}"
    done = elastic.finish(elastic.program("bash", "-c", f"ulimit -Sn 60 && exec {agent}"))
    assert done.code == 0, done.err
    assert lines(re.sub(r"\[.*?\]:", "", done.out)) == ["60"] * 16


def test_pkill_elastic_leaves_no_worker(elastic):
    """Like `pkill -9 -f elastic`. No worker has the name in its command line."""
    script = elastic.script("train.py", "import subprocess, time\nsubprocess.Popen(['sleep', '600'])\ntime.sleep(600)")
    agent = elastic.start("run", "--nproc-per-node=2", script)
    below = eventually(lambda: (found := psutil.Process(agent.pid).children(recursive=True))[4:] and found, "workers")
    named = [process for process in below if any("elastic" in word for word in process.cmdline()[1:])]
    for process in [*named, agent]:
        process.kill()
    assert len(named) < len(below)
    eventually(lambda: not any(process.is_running() and process.status() != "zombie" for process in below), "no worker")
    eventually(lambda: not elastic.living(), "no process, even if it was started after the list was made")


FAILS_AND_STAYS = """
import atexit, os, pathlib, time
from elastic_core.error_file import record

@record
def main():
    file = pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"])
    if file.name == "rank-0.error.json":
        atexit.register(time.sleep, 600)
        raise ValueError("no samples")
    while not file.with_name("rank-0.error.json").exists():
        time.sleep(0.01)
    time.sleep(3.1)
    os.abort()

main()
"""


def test_first_error_is_root_cause_if_worker_exits_last(elastic):
    script = elastic.script("train.py", FAILS_AND_STAYS)
    done = elastic.run("--nproc-per-node=2", "--shutdown-timeout=1", script)
    assert done.code == 1
    report = done.err[done.err.index("Root cause") :]
    assert "rank 0" in report.splitlines()[0] and "ValueError: no samples" in report


def test_python_exec_and_local_rank_argument_apply(elastic):
    script = elastic.script("args.py", "import os, sys; print(os.environ['WHO'], sys.argv[1])\n")
    (elastic.cwd / "python").write_text(f'#!/bin/sh\nWHO=wrapped exec {sys.executable} "$@"\n')
    (elastic.cwd / "python").chmod(0o755)
    done = elastic.run("--nproc-per-node=2", script, "r${local_rank}", PYTHON_EXEC=str(elastic.cwd / "python"))
    assert lines(done.out) == ["wrapped r0", "wrapped r1"]


def test_redirect_and_tee_select_log_files(elastic):
    script = elastic.script(
        "talk.py",
        "import os, sys; r = os.environ['RANK']; print('out', r); print('err', r, file=sys.stderr)\n",
    )
    done = elastic.run("--nproc-per-node=12", "-r", "0:3,11:1", "-t", "10:3", "--log-dir=logs", "--rdzv-id=job", script)
    assert done.code == 0
    folder = elastic.cwd / "logs" / "job" / "round-1"
    assert (elastic.cwd / "logs" / "latest").resolve() == folder
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["rank-0.err", "rank-0.out", "rank-10.err", "rank-10.out", "rank-11.out"]
    assert (folder / "rank-0.err").read_text() == "err 0\n"
    assert (folder / "rank-10.out").read_text() == "out 10\n"
    console = lines(done.out)
    assert "[default10]:out 10" in console
    assert "out 0" not in console and "out 11" not in console
    assert "out 5" in console
    assert "err 11" in done.err and "err 0\n" not in done.err


def test_log_filters_prefix_and_ranks_filter_apply(elastic):
    script = elastic.script("talk.py", "import os; r = os.environ['RANK']; print('loss, 1 at', r); print('noise', r)\n")
    done = elastic.run(
        "--nproc-per-node=2", "-t", "1", "--local-ranks-filter=1", "--log-dir=logs", "--rdzv-id=job",
        "--duplicate-stdout-filters=loss,,", script,
        TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="${host}-less ${rank}|",
    )  # fmt: skip
    console = done.out.splitlines()
    assert [line.partition("|")[2] for line in console] == ["loss, 1 at 1", "noise 1"]
    assert all(line.partition("|")[0].endswith("-less 1") for line in console)
    folder = elastic.cwd / "logs" / "latest"
    kept = [line.partition("-less ")[2] for line in lines((folder / "filtered.out").read_text())]
    assert kept == ["0|loss, 1 at 0", "1|loss, 1 at 1"]


def test_no_temporary_file_remains(elastic):
    elastic.run("--nproc-per-node=2", elastic.script("fail.py", "raise SystemExit(3)\n"), TMPDIR=str(elastic.cwd))
    assert not list(elastic.cwd.glob("elastic-*"))


def test_failure_report_needs_no_decorator(elastic):
    script = elastic.script(
        "fail.py",
        """
        import os, sys, time
        if os.environ["RANK"] == "1":
            print("the data disk failed", file=sys.stderr)
            raise ValueError("no samples")
        time.sleep(600)
        """,
    )
    done = elastic.run("--nproc-per-node=2", "--result-file=result.json", "--rdzv-id=job7", script)
    assert done.code == 1
    report = done.err[done.err.index("elastic: ") :]
    assert report.startswith("elastic: job job7 failed: no restart is allowed")
    assert "Root cause: rank 1 (local rank 1, pid " in report
    assert re.search(r" on \S+: exit code 1\n", report)
    assert "the data disk failed" in report
    assert "ValueError: no samples" in report
    result = json.loads((elastic.cwd / "result.json").read_text())
    assert (result["version"], result["state"], result["exit_code"], result["run_id"]) == (1, "FAILED", 1, "job7")
    first = result["first_failure"]
    assert (first["global_rank"], first["exitcode"], first["signal"]) == (1, 1, None)
    assert first["stderr_tail"][-1] == "ValueError: no samples"
    assert first["node"]


def test_restart_has_a_new_store_and_count(elastic):
    script = elastic.script(
        "twice.py",
        """
        import os, sys
        print(*(os.environ[n] for n in ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "MASTER_PORT")))
        sys.exit(0 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "2" else 4)
        """,
    )
    done = elastic.run("--max-restarts=2", "--log-format=json", script)
    assert done.code == 0
    seen = [line.split() for line in done.out.splitlines()]
    assert [(count, most) for count, most, _ in seen] == [("0", "2"), ("1", "2"), ("2", "2")]
    assert len({port for _, _, port in seen}) == 3
    events = [json.loads(line) for line in done.err.splitlines()]
    decided = [event for event in events if event["event"] == "restart decided"]
    assert [event["cause"] for event in decided] == ["failure", "failure"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signal_stops_workers_and_sets_the_exit_code(elastic, read_fifo, signum):
    fifo, read = read_fifo
    script = elastic.script("graceful.py", WAIT_FOR_SIGNAL.format(fifo=fifo, then="sys.exit(0)"))
    process = elastic.start("run", "--nproc-per-node=2", "--max-restarts=3", script)
    read(2)
    process.send_signal(signum)
    assert read(2) == [f"got {int(signum)}"] * 2
    done = elastic.finish(process)
    assert done.code == 128 + signum
    assert done.err.count("workers started") == 1


WAIT = "import os, time; print(os.getpid(), file=open({fifo!r}, 'w'), flush=True); time.sleep(600)\n"


def test_selected_signal_is_handled(elastic, read_fifo):
    fifo, read = read_fifo
    process = elastic.start("run", "--signals-to-handle=SIGUSR1", elastic.script("wait.py", WAIT.format(fifo=fifo)))
    read(1)
    process.send_signal(signal.SIGUSR1)
    assert elastic.finish(process).code == 128 + signal.SIGUSR1


def test_unselected_signal_ends_the_agent_unhandled(elastic, read_fifo):
    """Other signals have their default effect: SIGTERM ends the agent, and the guardian ends the worker."""
    fifo, read = read_fifo
    process = elastic.start("run", "--signals-to-handle=SIGUSR1", elastic.script("wait.py", WAIT.format(fifo=fifo)))
    (pid,) = read(1)
    worker = os.pidfd_open(int(pid))
    try:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
        assert select.select([worker], [], [], 60)[0], "the worker outlived its agent"
    finally:
        os.close(worker)


def test_second_signal_ends_the_grace_period(elastic, read_fifo):
    fifo, read = read_fifo
    script = elastic.script("deaf.py", WAIT_FOR_SIGNAL.format(fifo=fifo, then="time.sleep(600)"))
    process = elastic.start("run", "--shutdown-timeout=1000", script)
    read(1)
    process.send_signal(signal.SIGTERM)
    assert read(1) == ["got 15"]
    time.sleep(0.6)  # a signal that comes sooner belongs to the same request
    process.send_signal(signal.SIGINT)
    assert elastic.finish(process).code == 128 + signal.SIGTERM


def test_two_signals_together_keep_the_grace_period(elastic, read_fifo):
    fifo, read = read_fifo
    then = "time.sleep(1), os.write(fifo, b'saved\\n')"
    script = elastic.script("saves.py", WAIT_FOR_SIGNAL.format(fifo=fifo, then=then))
    process = elastic.start("run", script)
    read(1)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGHUP)
    assert read(2) == ["got 15", "saved"]
    assert elastic.finish(process).code == 128 + signal.SIGTERM


def test_unhandled_signals_do_not_end_the_agent(elastic, read_fifo):
    fifo, read = read_fifo
    process = elastic.start("run", elastic.script("wait.py", WAIT.format(fifo=fifo)))
    read(1)
    for signum in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        process.send_signal(signum)
    assert elastic.finish(process).code == 128 + signal.SIGTERM


BLOCKED = """
import signal, time
print("blocked:", *signal.pthread_sigmask(signal.SIG_BLOCK, ()), file=open({fifo!r}, "w"), flush=True)
time.sleep(600)
"""
BLOCK = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 16))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_blocked_signals_are_handled(elastic, read_fifo):
    fifo, read = read_fifo
    script = elastic.script("blocked.py", BLOCKED.format(fifo=fifo))
    process = elastic.program(sys.executable, "-c", BLOCK, "-m", "elastic_core", "run", script)
    assert read(1) == ["blocked:"]
    process.send_signal(signal.SIGTERM)
    assert elastic.finish(process).code == 128 + signal.SIGTERM


def test_blocked_signals_end_a_server(elastic, job):
    serve = ("-m", "elastic_core", "serve", f"--rdzv-endpoint={job.endpoint}")
    process = elastic.program(sys.executable, "-c", BLOCK, *serve)
    eventually(lambda: "store served" in process.stderr.readline(), "the store")
    process.send_signal(signal.SIGTERM)
    assert elastic.finish(process).code == 0


def test_slow_stop_is_logged(elastic, job, read_fifo):
    """The worker runs until the line appears."""
    fifo, read = read_fifo
    os.mkfifo(elastic.cwd / "let-go")
    script = elastic.script("slow.py", WAIT_FOR_SIGNAL.format(fifo=fifo, then="open('let-go').close()"))
    agent = job.command("agent", "run", script)
    read(1)
    agent.signal(signal.SIGTERM)
    line = r'still waiting: waiting_for="workers to stop" local_ranks=0 seconds=(\d+) '
    found = eventually(lambda: re.search(line, agent.err), "the line")
    assert int(found[1]) >= 3
    open(elastic.cwd / "let-go", "w").close()
    assert agent.code() == 128 + signal.SIGTERM


def test_worker_reads_the_agents_standard_input(elastic):
    script = elastic.script("read.py", "import sys; print('read', repr(sys.stdin.readline()))\n")
    process = elastic.start("run", script, stdin=subprocess.PIPE)
    process.stdin.write("a line for rank 0\n")
    process.stdin.flush()
    assert elastic.finish(process).out == "read 'a line for rank 0\\n'\n"


def test_self_ending_helpers_are_not_reported(elastic):
    """multiprocessing leaves a tracker behind, which ends itself soon after."""
    script = elastic.script(
        "tracked.py",
        """
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()
        print("tracked")
        """,
    )
    done = elastic.run(script)
    assert (done.code, done.out) == (0, "tracked\n")
    assert "leftover processes" not in done.err
