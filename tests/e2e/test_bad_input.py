"""Bad input and bad luck lead to a clear report and the documented exit code, without orphans or lost output."""

from __future__ import annotations

import os
import select
import socket
import sys

import pytest
from job_of_nodes import free_port

from elastic_core.errors import ExitCode

BAD = ExitCode.BAD_CONFIGURATION


def paragraph(err):
    """The error report, which is the last output."""
    return err[err.index("elastic: ") :]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["broken.py"], "SyntaxError"),
        (["strict.py", "--no-such-flag"], "strict.py: error: unrecognized arguments"),
        (["-m", "no_such_module_anywhere"], ""),
    ],
    ids=["syntax error", "argument error", "missing module"],
)
def test_script_that_cannot_run_is_not_restarted(elastic, words, why):
    elastic.script("broken.py", "def f(:\n    pass\n")
    elastic.script("strict.py", "import argparse; argparse.ArgumentParser().parse_args()\n")
    done = elastic.run("--max-restarts=5", *words)
    assert done.code == ExitCode.WORKER_FAILED
    assert f"a restart would not help: {why}" in paragraph(done.err)
    assert done.err.count("workers started") == 1


def test_taken_master_port_is_an_error(elastic):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        done = elastic.run(f"--master-port={port}", elastic.script("hello.py", "print('hello')\n"))
    assert done.code == BAD
    assert str(port) in paragraph(done.err)
    assert "ss -ltnp" in paragraph(done.err)
    assert "hello" not in done.out


def on_small_disk(elastic, options, *words):
    """Run a job while a file system with these mount options covers the folder `logs`."""
    (elastic.cwd / "logs").mkdir()
    mount = f'mount -t tmpfs -o {options} none logs && touch mounted && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-m", "elastic_core", "run", *words]
    done = elastic.finish(elastic.program(*command))
    if not (elastic.cwd / "mounted").exists():
        pytest.skip(f"no file system can be mounted here: {done.err}")
    return done


def test_read_only_log_dir_is_an_error_before_the_round(elastic):
    done = on_small_disk(elastic, "ro", "--log-dir=logs", elastic.script("hello.py", "print('hello')\n"))
    assert done.code == BAD
    assert "--log-dir: cannot write to" in paragraph(done.err)
    assert "round formed" not in done.err


@pytest.mark.torch
def test_node_with_unwritable_log_dir_does_not_join(elastic):
    """The other node does not exist. The error would otherwise come only after it had joined."""
    (elastic.cwd / "taken").write_text("a file, not a folder")
    place = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    flags = ["--nnodes=2", "--rdzv-id=job", "--rdzv-conf=join_timeout=20", place, "--log-dir=taken/logs"]
    done = elastic.run(*flags, elastic.script("hello.py", "print('hello')\n"))
    assert done.code == BAD
    assert "--log-dir: cannot write to" in paragraph(done.err)


def test_leftover_grandchildren_are_ended(elastic):
    script = elastic.script(
        "parent.py",
        """
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; print('grandchild', flush=True); time.sleep(600)"])
        print("parent is done", flush=True)
        """,
    )
    done = elastic.run("--nproc-per-node=2", "-t", "3", "--log-dir=logs", script)
    assert done.code == 0
    assert done.out.count("parent is done") == 2
    assert "leftover processes" in done.err


@pytest.mark.parametrize("how", ["-t", "-r"])
def test_full_log_disk_is_reported(elastic, how):
    """With `-t`, the console gets the rest; with `-r`, the worker's own write fails."""
    script = elastic.script("much.py", "for n in range(20_000):\n    print('line', n)\n")
    flags = (how, "1", "--log-dir=logs", "--log-line-prefix-template=")
    done = on_small_disk(elastic, "size=64k", *flags, script)
    assert "No space left on device" in done.err
    if how == "-t":
        assert (done.code, done.err.count("output lost")) == (0, 1)
        assert done.out.splitlines() == [f"line {n}" for n in range(20_000)]
    else:
        assert (done.code, done.out) == (ExitCode.WORKER_FAILED, "")


def test_full_log_disk_does_not_keep_a_node_from_joining(elastic):
    """In a later round of a running job, the node could do without log files."""
    only_the_folder = "nr_inodes=1"
    done = on_small_disk(elastic, only_the_folder, "--log-dir=logs/new", elastic.script("hello.py", ""))
    assert done.code == BAD
    assert "--log-dir: cannot write to" in paragraph(done.err)
    assert "round formed" in done.err


def test_out_of_memory_kill_is_recognized(elastic):
    group = memory_group()
    if group is None:
        pytest.skip("a memory control group cannot be made here")
    script = elastic.script(
        "hungry.py",
        """
        import os, time
        hoard = []
        while os.environ["RANK"] == "1":
            hoard.append(bytearray(8_000_000))
        time.sleep(600)
        """,
    )
    enter = f"echo $$ > {group}/cgroup.procs; exec {sys.executable} -m elastic_core run --nproc-per-node=2 {script}"
    try:
        done = elastic.finish(elastic.program("sh", "-c", enter))
    finally:
        os.rmdir(group)
    assert done.code == ExitCode.WORKER_FAILED
    assert "rank 1" in paragraph(done.err)
    assert "out of memory" in paragraph(done.err)


def memory_group():
    """A control group of 80 MB (version 1 or 2), or None."""
    name = f"elastic-test-{os.getpid()}"
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        path = f"{root}/{name}"
        try:
            os.mkdir(path)
        except OSError:
            continue
        try:
            with open(f"{path}/{limit}", "w") as file:
                file.write("80000000")
        except OSError:
            os.rmdir(path)
            continue
        return path
    return None


def test_slow_console_gets_all_output(elastic):
    script = elastic.script("much.py", "for n in range(20_000):\n    print('line', n)\n")
    process = elastic.start("run", "--nproc-per-node=2", script)
    handle = os.pidfd_open(process.pid)
    assert not select.select([handle], [], [], 2)[0]  # its stdout has no reader, so it waits and loses nothing
    os.close(handle)
    done = elastic.finish(process)
    assert done.code == 0
    assert done.out.count("\n") == 40_000
    assert "output lost" not in done.err


FILLS_THE_DISK = """
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    try:
        for number in range(1000):
            open(os.path.join(sys.argv[1], str(number)), "w").close()
    except OSError:
        sys.exit(1)
"""


def test_full_log_disk_does_not_end_the_job(elastic):
    """The folder of the second round cannot be created."""
    flags = ("--log-dir=logs", "--redirects=3", "--max-restarts=1")
    done = on_small_disk(elastic, "nr_inodes=32", *flags, elastic.script("fill.py", FILLS_THE_DISK), "logs")
    assert done.code == 0
    assert done.err.count("output lost") == 1
