"""Another user of the machine, a real one, who lays snares where both may write: none of them catches."""

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
    """A folder of ours in it, from which the job is started."""
    elastic.cwd = shared / "job"
    elastic.cwd.mkdir(mode=0o755)
    elastic.script("train.py", "print('trained')")
    return elastic


def as_nobody(script: str, *words: object) -> None:
    command = ["sh", "-euc", script, "sh", *map(str, words)]
    subprocess.run(command, user="nobody", group="nogroup", extra_groups=[], check=True, cwd="/", timeout=180)


def test_a_config_file_that_the_search_finds_does_not_govern(job, shared, precious):
    as_nobody('printf "result_file = \\"%s\\"\\nmax_restarts = 7" "$2" > "$1/elastic.toml"', shared, precious)
    done = job.run("--log-format=json", "train.py")
    assert (done.code, done.out) == (0, "trained\n")
    assert precious.read_text() == PRECIOUS
    events = [json.loads(line) for line in done.err.splitlines()]
    (told,) = (event for event in events if event["event"] == "setting left out")
    assert told["origin"] == str(shared / "elastic.toml")
    assert f"{shared}/elastic.toml belongs to user nobody" in told["reason"]
    shown = job.finish(job.start("explain", "train.py"))
    assert f"config file: none\nleft out: {shared}/elastic.toml: ignored, because" in shown.out
    as_json = json.loads(job.finish(job.start("explain", "--json", "train.py")).out)
    assert as_json["settings"]["max_restarts"]["value"] == 0
    assert [entry["origin"] for entry in as_json["left_out"]] == [str(shared / "elastic.toml")]
    where = ("--rdzv-endpoint=127.0.0.1:1", "--rdzv-id=x", "--rdzv-conf=connect_timeout=1")
    for command in (("status", *where), ("doctor",)):
        assert "left out: " in job.finish(job.start(*command)).err


def test_a_table_in_a_pyproject_does_not_govern_and_the_next_file_does(job, shared):
    as_nobody('printf "[tool.elastic]\\nnnodes = \\"4:1\\"" > "$1/pyproject.toml"', shared)
    job.cwd = shared / "job" / "deeper"
    job.cwd.mkdir()
    os.chown(job.cwd, 65534, -1)
    as_nobody('echo "[tool.other]" > "$1/pyproject.toml"', job.cwd)  # is none of ours, and not told
    (shared / "job" / "elastic.toml").write_text("max_restarts = 3")
    shown = json.loads(job.finish(job.start("explain", "--json")).out)
    assert (shown["config_file"], shown["settings"]["max_restarts"]["value"]) == (f"{shared}/job/elastic.toml", 3)
    assert shown["left_out"] == []
    (shared / "job" / "elastic.toml").unlink()
    shown = json.loads(job.finish(job.start("explain", "--json")).out)
    assert [entry["origin"] for entry in shown["left_out"]] == [f"{shared}/pyproject.toml"]


def test_the_log_says_which_file_governs(job):
    path = job.cwd / "elastic.toml"
    path.write_text("max_restarts = 3")
    done = job.run("--log-format=json", "train.py")
    started = json.loads(done.err.splitlines()[0])
    assert (started["event"], started["config_file"]) == ("run started", str(path))
    piped = job.program("bash", "-c", 'python3 -m elastic_core explain --config <(echo "max_restarts = 5")')
    assert "max_restarts" in job.finish(piped).out


def test_the_search_ends_where_another_file_system_begins(job):
    (job.cwd / "elastic.toml").write_text("max_restarts = 3")
    folder = job.cwd / "mount"
    folder.mkdir()
    look = "mkdir -p mount/deep && cd mount/deep && exec python3 -m elastic_core explain --json"
    assert json.loads(job.finish(job.program("sh", "-c", look)).out)["config_file"] == f"{job.cwd}/elastic.toml"
    done = job.finish(job.program("unshare", "-m", "sh", "-c", f"mount -t tmpfs none mount && {look}"))
    if "not permitted" in done.err:
        pytest.skip(done.err)
    assert json.loads(done.out)["config_file"] is None


@pytest.mark.parametrize("snare", ['ln -s "$2" "$1"', 'mkfifo -m 666 "$1"'])
def test_a_result_file_in_a_shared_folder(job, shared, precious, snare):
    path = shared / "result.json"
    as_nobody(snare, path, precious)
    done = job.run("--result-file", str(path), "train.py")
    assert (done.code, done.out) == (2, "")
    assert "--result-file: cannot write to" in done.err
    assert "user nobody" in done.err
    assert precious.read_text() == PRECIOUS


def test_no_temporary_name_of_a_result_can_be_foreseen(job, shared, precious):
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


@pytest.mark.parametrize("snare", LOGS.values(), ids=LOGS.keys())
def test_log_files_in_a_shared_folder(job, shared, precious, snare):
    logs = shared / "logs"
    as_nobody('mkdir -m 1777 "$1"', logs)
    os.chown(logs, 0, 0)
    logs.chmod(0o1777)
    before = sorted(shared.iterdir())
    as_nobody(snare, logs, precious)
    done = job.run("--log-dir", str(logs), "--redirects=3", "--rdzv-id=job1", "train.py")
    assert (done.code, done.out) == (2, "")
    assert "--log-dir: cannot write to" in done.err
    assert "user nobody" in done.err
    assert precious.read_text() == PRECIOUS
    assert sorted(shared.iterdir()) == before


def test_log_files_in_a_folder_of_ours_that_others_may_write(job, shared, precious):
    folder = shared / "logs" / "job1" / "round-1"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    for snare, told in (
        ('ln -s "$2" "$1"', "it is a link that belongs to user nobody"),
        ('mkfifo -m 666 "$1"', "this pipe has no reader"),
        ('touch "$1"', "it was created by user nobody"),
    ):
        as_nobody(snare, folder / "rank-0.err", precious)
        done = job.run("--log-dir", str(shared / "logs"), "--redirects=3", "--rdzv-id=job1", "train.py")
        assert (done.code, done.out) == (2, "")
        assert told in done.err
        (folder / "rank-0.err").unlink()
    assert precious.read_text() == PRECIOUS


def test_an_error_file_that_is_a_link_is_neither_written_nor_read(job, shared, precious):
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


@pytest.mark.parametrize("snare", ['ln -s "$2" "$1"', 'umask 0; touch "$1"'])
def test_an_event_file_in_a_shared_folder(job, shared, precious, snare):
    path = shared / "events.jsonl"
    as_nobody(snare, path, precious)
    done = job.run(f"--event-log-handler=file:{path}", "train.py")
    assert (done.code, done.out) == (2, "")
    assert "--event-log-handler: cannot write to the file" in done.err
    assert precious.read_text() == PRECIOUS


def test_what_a_user_does_on_purpose_works(job, shared):
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


def test_a_result_goes_to_stdout_or_to_a_pipe_on_purpose(job, shared):
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
