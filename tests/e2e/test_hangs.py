"""Hung workers under the real command: which worker is killed, what is reported, and that the job continues."""

from __future__ import annotations

import json
import re
import signal
from datetime import datetime

import pytest

# In the first round rank 1, which has a child process, hangs, and rank 0 waits for it as in a collective. Rank 0 prints
# the signal that it gets at its end, and rank 1 hangs only when rank 0 can do so. {hang} is the code that hangs.
SCRIPT = """
import os, signal, subprocess, sys, time

def handler(signum, frame):
    print("got", signal.Signals(signum).name, flush=True)
    sys.exit(1)

def train_step():
    {hang}

print("round", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
ready = f"ready-{os.getppid()}"
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        subprocess.Popen(["sleep", "600"])
        while not os.path.exists(ready):
            print("not yet", flush=True)
            time.sleep({pause})
        print("hangs from", time.time(), flush=True)
        train_step()
    signal.signal(signal.SIGTERM, handler)
    open(ready, "w").close()
    while True:
        print("waiting", flush=True)
        time.sleep({pause})
"""
BY_TIMER = """from elastic_core.watchdog import expires
    with expires(after=0.5, scope="step"):
        time.sleep(600)"""
FLAGS = ("--nproc-per-node=2", "--max-restarts=1", "--result-file=result.json", "--log-format=json", "--rdzv-id=job7")
TIMEOUT = 6.0  # seconds; long enough for a machine that stalls
LOGS = '[(print("step", flush=True), time.sleep(0.5)) for _ in range(24)]'  # for twice the timeout
BY_PROGRESS = (f"--hang-timeout={TIMEOUT:g}", "--hang-warmup=0")


@pytest.fixture
def run(elastic):
    """Function that runs a script in which rank 1 hangs. Returns the completed run, its result file and its events."""

    def run(hang, *flags, pause=0.1, **environment):
        script = elastic.script("train.py", SCRIPT.replace("{hang}", hang).replace("{pause}", str(pause)))
        done = elastic.run(*FLAGS, *flags, script, **environment)
        result = json.loads((elastic.cwd / "result.json").read_text())
        events = [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]
        return done, result, events

    return run


def seconds_to_kill(done, events, timeout):
    """Seconds from the moment when the worker should have moved on until it was killed."""
    began = next(float(line.split()[-1]) for line in done.out.splitlines() if line.startswith("hangs from"))
    killed = next(event for event in events if event["event"] == "worker hangs")
    return datetime.fromisoformat(killed["timestamp"].replace("Z", "+00:00")).timestamp() - began - timeout


def idle_seconds(text):
    """The seconds without progress in a reason."""
    return float(re.search(r"hang: no progress for (\d+(?:\.\d)?) s \(", text)[1])


def check_healed(done, result, events):
    """Check that the job continued after one restart for a hang, and the other worker was stopped in the usual way."""
    assert done.code == 0, done.err
    assert (result["state"], result["restart_count"]) == ("SUCCEEDED", 1)
    assert [restart["cause"] for restart in result["restarts"]] == ["hang"]
    assert [fact["round"] for fact in result["rounds"]] == [1, 2]
    assert [event["local_rank"] for event in events if event["event"] == "worker hangs"] == [1]
    assert done.out.count("got SIGTERM") == 1
    assert done.out.count("round 1") == 2
    first = result["failures"][0]
    assert (first["global_rank"], first["caused_by"]) == (1, None)
    assert first["signal"] == "SIGABRT" or " in train_step" not in first["stack"]  # SIGKILL: no time for a stack
    assert [failure["caused_by"] for failure in result["failures"][1:]] in ([], [1])
    return first


def check_found(late, stack):
    """Check how many seconds after the timeout the worker was killed, and its stack. The benchmark of hangs, which has
    the machine to itself, measures how soon a hang is found."""
    assert 0 <= late < 60, "it would hang for ten minutes"
    assert " in train_step" in stack


def test_unreleased_timer_restarts_the_job(run):
    done, result, events = run(BY_TIMER, "--watchdog=file")
    first = check_healed(done, result, events)
    assert first["reason"] == "hang: the watchdog timer 'step' was not released in time"
    check_found(seconds_to_kill(done, events, 0.5), first["stack"])


@pytest.mark.parametrize(
    ("hang", "flags", "missing"),
    [
        pytest.param("time.sleep(600)", (), "no log line, no CPU time, no beat", marks=pytest.mark.nightly),
        ("import ctypes; ctypes.PyDLL(None).pause()", (), "no log line, no CPU time, no beat"),
        pytest.param(
            "os.kill(os.getpid(), signal.SIGSTOP)", (), "no log line, no CPU time, no beat", marks=pytest.mark.nightly
        ),
        ("while True: pass", ("--hang-progress=log,beat",), "no log line, no beat"),
        (f"{LOGS}; any(iter(bool, True))", (), "no log line, no beat"),
    ],
    ids=[
        "sleeps",
        "in C with the lock of the interpreter",
        "stopped",
        "spins where CPU time is no progress",
        "spins after it has logged its steps",
    ],
)
def test_hang_in_an_unmodified_script_is_found(run, hang, flags, missing):
    done, result, events = run(hang, *BY_PROGRESS, *flags)
    first = check_healed(done, result, events)
    assert first["reason"].endswith(f" s ({missing})")
    seconds = idle_seconds(first["reason"]) - TIMEOUT
    assert seconds >= 0
    check_found(max(seconds, seconds_to_kill(done, events, TIMEOUT)), first["stack"])


@pytest.mark.parametrize("ends", ["atexit", pytest.param("__del__", marks=pytest.mark.nightly)])
def test_hang_at_interpreter_exit_is_found(elastic, ends):
    """The other rank has succeeded, and this one has finished its work. torch's gloo threads can block it there."""
    script = elastic.script(
        "train.py",
        """
        import atexit, ctypes, os, time

        def hangs(*_):
            ctypes.PyDLL(None).pause()

        for _ in range(5):
            print("step", flush=True)
            time.sleep(0.1)
        if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if ENDS == "atexit":
                atexit.register(hangs)
            else:
                group = type("Group", (), {"__del__": hangs})()
        """.replace("ENDS", repr(ends)),
    )
    done = elastic.run(*FLAGS, *BY_PROGRESS, script)
    assert done.code == 0, done.err
    result = json.loads((elastic.cwd / "result.json").read_text())
    assert [restart["cause"] for restart in result["restarts"]] == ["hang"]
    assert result["failures"][0]["global_rank"] == 1


def test_heartbeats_output_and_cpu_time_are_progress(elastic):
    """Each worker makes a different kind of progress for longer than the timeout, the first one without output."""
    script = elastic.script(
        "train.py",
        """
        import os, sys, time
        from elastic_core.watchdog import beat
        rank = int(os.environ["RANK"])
        for _ in range(60):
            if rank == 0:
                beat()
            elif rank == 1:
                print(end=".", flush=True)
            else:
                end = time.process_time() + 0.02
                while time.process_time() < end:
                    pass
            time.sleep(0.15)
        """,
    )
    done = elastic.run("--nproc-per-node=3", "--hang-timeout=6", "--hang-warmup=0.5", script)
    assert done.code == 0, done.err
    assert "worker hangs" not in done.err


def test_suspended_agent_reports_no_hang(elastic, read_fifo):
    fifo, read = read_fifo
    script = elastic.script(
        "train.py",
        f"""
        import time
        with open({fifo!r}, "w") as fifo:
            for step in range(28):
                print("step", step, flush=True)
                print("step", step, file=fifo, flush=True)
                time.sleep(0.35)
        """,
    )
    process = elastic.start("run", *BY_PROGRESS, script)
    read(2)
    process.send_signal(signal.SIGSTOP)
    read(20)  # 7 s
    process.send_signal(signal.SIGCONT)
    done = elastic.finish(process)
    assert done.code == 0, done.err
    assert "worker hangs" not in done.err


# Two ranks that meet in a collective. In each round, rank 1 never reaches the third step.
GLOO = """
import os, time
import torch, torch.distributed as dist
torch.set_num_threads(1)

def load_batch():
    time.sleep(600)

dist.init_process_group("gloo")
for step in range(5):
    print("round", os.environ["TORCHELASTIC_RESTART_COUNT"], "step", step, flush=True)
    if step == 3 and os.environ["RANK"] == "1":
        load_batch()
    dist.all_reduce(torch.ones(1))
"""


@pytest.mark.torch
def test_all_agents_restart_and_report_rank_of_hang(job, elastic):
    """The node of rank 0, which waits in the collective, has a long timeout; otherwise the two nodes would race."""
    script = elastic.script("train.py", GLOO)
    flags = ("--nnodes=2", "--max-restarts=1")
    host = job.agent("a", *flags, "--node-rank=0", "--hang-timeout=60", "--result-file=a.json", script=script)
    host.says("store hosted")
    hangs = job.agent("b", *flags, "--node-rank=1", *BY_PROGRESS, "--result-file=b.json", script=script)
    assert [hangs.code(), host.code()] == [1, 5]
    for agent in (host, hangs):
        result = json.loads((elastic.cwd / f"{agent.name}.json").read_text())
        assert (result["restart_count"], [fact["cause"] for fact in result["restarts"]]) == (1, ["hang"])
        assert [fact["round"] for fact in result["rounds"]] == [1, 2]
        assert "round 1 step 3" in agent.out
        assert "Root cause (round 2, after 1 restart): rank 1 (local rank 0, pid " in agent.report
        assert " on b: hang: no progress for " in agent.report
        seconds = [
            idle_seconds(result["restarts"][0]["reason"]),
            idle_seconds(result["first_failure"]["reason"]),
        ]
        assert idle_seconds(agent.report) == seconds[1]
        assert TIMEOUT <= min(seconds) <= max(seconds) < 60  # b's timeout and not a's, however slow the machine is
        assert " in load_batch\n" in agent.report
    assert "failed after it" not in hangs.report.lower()
