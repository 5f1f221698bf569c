"""A real second user of the machine sets traps in folders that both may write. None of them works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif("os.geteuid() != 0", reason="only root can act for another user"),
]
PRECIOUS = "do not touch\n"


@pytest.fixture
def shared():
    """A folder like /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="shared-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def precious(shared):
    path = shared / "precious"
    path.write_text(PRECIOUS)
    path.chmod(0o600)
    return path


@pytest.fixture
def job(elastic, shared):
    """The folder below it from which the job is started."""
    elastic.cwd = shared / "job"
    elastic.cwd.mkdir(mode=0o755)
    elastic.script("train.py", "print('trained')")
    return elastic


def as_nobody(script: str, *words: object) -> None:
    command = ["sh", "-euc", script, "sh", *map(str, words)]
    subprocess.run(command, user="nobody", group="nogroup", extra_groups=[], check=True, cwd="/", timeout=180)


def test_foreign_config_file_is_ignored(job, shared, precious):
    as_nobody('printf "result_file = \\"%s\\"\\nmax_restarts = 7" "$2" > "$1/elastic.toml"', shared, precious)
    done = job.run("--log-format=json", "train.py")
    assert (done.code, done.out) == (0, "trained\n")
    assert precious.read_text() == PRECIOUS
    events = [json.loads(line) for line in done.err.splitlines()]
    (event,) = (event for event in events if event["event"] == "setting ignored")
    assert event["origin"] == str(shared / "elastic.toml")
    assert f"{shared}/elastic.toml belongs to user nobody" in event["reason"]
    shown = job.finish(job.start("explain", "train.py"))
    assert f"config file: none\nleft out: {shared}/elastic.toml: ignored because" in shown.out
    as_json = json.loads(job.finish(job.start("explain", "--json", "train.py")).out)
    assert as_json["settings"]["max_restarts"]["value"] == 0
    assert [entry["origin"] for entry in as_json["left_out"]] == [str(shared / "elastic.toml")]
    where = ("--rdzv-endpoint=127.0.0.1:1", "--rdzv-id=x", "--rdzv-conf=connect_timeout=1")
    for command in (("status", *where), ("doctor",)):
        assert "setting ignored: " in job.finish(job.start(*command)).err


def test_foreign_pyproject_is_ignored_and_search_continues(job, shared):
    as_nobody('printf "[tool.elastic]\\nnnodes = \\"4:1\\"" > "$1/pyproject.toml"', shared)
    job.cwd = shared / "job" / "deeper"
    job.cwd.mkdir()
    os.chown(job.cwd, 65534, -1)
    as_nobody('echo "[tool.other]" > "$1/pyproject.toml"', job.cwd)  # irrelevant, so not reported
    (shared / "job" / "elastic.toml").write_text("max_restarts = 3")
    shown = json.loads(job.finish(job.start("explain", "--json")).out)
    assert (shown["config_file"], shown["settings"]["max_restarts"]["value"]) == (f"{shared}/job/elastic.toml", 3)
    assert shown["left_out"] == []
    (shared / "job" / "elastic.toml").unlink()
    shown = json.loads(job.finish(job.start("explain", "--json")).out)
    assert [entry["origin"] for entry in shown["left_out"]] == [f"{shared}/pyproject.toml"]


def test_log_names_the_config_file(job):
    path = job.cwd / "elastic.toml"
    path.write_text("max_restarts = 3")
    done = job.run("--log-format=json", "train.py")
    started = json.loads(done.err.splitlines()[0])
    assert (started["event"], started["config_file"]) == ("run started", str(path))
    piped = job.program("bash", "-c", 'python3 -m elastic_core explain --config <(echo "max_restarts = 5")')
    assert "max_restarts" in job.finish(piped).out


def test_search_stops_at_a_file_system_boundary(job):
    (job.cwd / "elastic.toml").write_text("max_restarts = 3")
    folder = job.cwd / "mount"
    folder.mkdir()
    look = "mkdir -p mount/deep && cd mount/deep && exec python3 -m elastic_core explain --json"
    assert json.loads(job.finish(job.program("sh", "-c", look)).out)["config_file"] == f"{job.cwd}/elastic.toml"
    done = job.finish(job.program("unshare", "-m", "sh", "-c", f"mount -t tmpfs none mount && {look}"))
    if "not permitted" in done.err:
        pytest.skip(done.err)
    assert json.loads(done.out)["config_file"] is None


@pytest.mark.parametrize("trap", ['ln -s "$2" "$1"', 'mkfifo -m 666 "$1"'])
def test_foreign_link_or_pipe_as_result_file_is_refused(job, shared, precious, trap):
    path = shared / "result.json"
    as_nobody(trap, path, precious)
    done = job.run("--result-file", str(path), "train.py")
    assert (done.code, done.out) == (2, "")
    assert "--result-file: cannot write to" in done.err
    assert "user nobody" in done.err
    assert precious.read_text() == PRECIOUS


def test_temporary_result_name_is_unpredictable(job, shared, precious):
    shared.chmod(0o777)
    command = ["bash", "-c", 'read; exec python3 -m elastic_core run --result-file "$0" train.py', shared / "result"]
    process = job.program(*map(str, command), stdin=subprocess.PIPE)
    as_nobody('ln -s "$3" "$1/.elastic-result.$2"', shared, process.pid, precious)
    out, err = process.communicate("\n", timeout=180)
    assert (process.returncode, out) == (0, "trained\n"), err
    assert json.loads((shared / "result").read_text())["state"] == "SUCCEEDED"
    assert precious.read_text() == PRECIOUS


LOGS = {
    "a link in place of a log file": 'mkdir -p "$1/job1/round-1"; ln -s "$2" "$1/job1/round-1/rank-0.out"',
    "a pipe in place of a log file": 'mkdir -p "$1/job1/round-1"; mkfifo -m 666 "$1/job1/round-1/rank-0.out"',
    "a link in place of the job's folder": 'ln -s "${2%/*}" "$1/job1"',
}


@pytest.mark.parametrize("trap", LOGS.values(), ids=LOGS.keys())
def test_log_trap_in_a_shared_folder_is_refused(job, shared, precious, trap):
    logs = shared / "logs"
    as_nobody('mkdir -m 1777 "$1"', logs)
    os.chown(logs, 0, 0)
    logs.chmod(0o1777)
    before = sorted(shared.iterdir())
    as_nobody(trap, logs, precious)
    done = job.run("--log-dir", str(logs), "--redirects=3", "--rdzv-id=job1", "train.py")
    assert (done.code, done.out) == (2, "")
    assert "--log-dir: cannot write to" in done.err
    assert "user nobody" in done.err
    assert precious.read_text() == PRECIOUS
    assert sorted(shared.iterdir()) == before


def test_log_trap_in_a_folder_that_others_write_is_refused(job, shared, precious):
    folder = shared / "logs" / "job1" / "round-1"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    for trap, reason in (
        ('ln -s "$2" "$1"', "it is a link that belongs to user nobody"),
        ('mkfifo -m 666 "$1"', "this pipe has no reader"),
        ('touch "$1"', "it was created by user nobody"),
    ):
        as_nobody(trap, folder / "rank-0.err", precious)
        done = job.run("--log-dir", str(shared / "logs"), "--redirects=3", "--rdzv-id=job1", "train.py")
        assert (done.code, done.out) == (2, "")
        assert reason in done.err
        (folder / "rank-0.err").unlink()
    assert precious.read_text() == PRECIOUS


def test_linked_error_file_is_neither_written_nor_read(job, shared, precious):
    folder = shared / "logs" / "job1" / "round-1"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    fail = """
        import os, subprocess, sys
        from elastic_core.error_file import record
        path, precious = os.environ["TORCHELASTIC_ERROR_FILE"], sys.argv[1]
        subprocess.run(["ln", "-s", precious, path], user="nobody", group="nogroup", extra_groups=[], check=True)
        @record
        def main():
            raise ValueError("here")
        main()
    """
    script = job.script("fail.py", fail)
    done = job.run("--log-dir", str(shared / "logs"), "--rdzv-id=job1", script, str(precious))
    assert done.code == 1
    assert "the error file is a link and was not read" in done.err
    assert "touch" not in done.err
    assert precious.read_text() == PRECIOUS


@pytest.mark.parametrize("trap", ['ln -s "$2" "$1"', 'umask 0; touch "$1"'])
def test_foreign_event_file_is_refused(job, shared, precious, trap):
    path = shared / "events.jsonl"
    as_nobody(trap, path, precious)
    done = job.run(f"--event-log-handler=file:{path}", "train.py")
    assert (done.code, done.out) == (2, "")
    assert "--event-log-handler: cannot write to the file" in done.err
    assert precious.read_text() == PRECIOUS


def test_own_links_and_devices_work(job, shared):
    real = shared / "scratch"
    real.mkdir()
    (job.cwd / "logs").symlink_to(real)
    (job.cwd / "latest.json").symlink_to(shared / "result.json")
    (shared / "result.json").write_text("an old one")
    words = ("--log-dir=logs", "--redirects=1", "--rdzv-id=job1", "--event-log-handler=file:/dev/stderr")
    for _ in range(2):
        done = job.run(*words, "--result-file=latest.json", "train.py")
        assert done.code == 0, done.err
        assert '"name"' in done.err
    assert (real / "job1" / "round-1" / "rank-0.out").read_text() == "trained\ntrained\n"
    assert (job.cwd / "latest.json").is_symlink()
    assert json.loads((shared / "result.json").read_text())["state"] == "SUCCEEDED"


def test_result_file_may_be_stdout_or_a_pipe(job, shared):
    done = job.run("--result-file=/dev/stdout", "train.py")
    assert (done.code, json.loads(done.out.partition("trained\n")[2])["exit_code"]) == (0, 0)
    command = 'python3 -m elastic_core run --result-file=/dev/stdout train.py > all.txt; echo "exit $?" >> all.txt'
    assert job.finish(job.program("sh", "-c", command)).code == 0
    text = (job.cwd / "all.txt").read_text()
    assert (text.startswith("trained\n{"), text.endswith("}\nexit 0\n")) == (True, True)
    pipe = job.cwd / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    assert job.run("--result-file=pipe", "train.py").code == 0
    reader.join(60)
    assert json.loads(found[0])["exit_code"] == 0
    done = job.run("--result-file=pipe", "train.py")
    assert (done.code, "could not be written to pipe: this pipe has no reader" in done.err) == (0, True)
