"""The command line, in this process where nothing must be seen from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest

from elastic_core import cli, log, result_file
from elastic_core.errors import ExitCode

ELASTIC = [sys.executable, "-m", "elastic_core"]


@pytest.fixture(autouse=True)
def quiet_afterwards():
    """`run` configures the log of the process."""
    yield
    log.configure(level="warning")


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A function that writes a script and returns its path; no config file is found from the current folder."""
    monkeypatch.chdir(tmp_path)

    def script(source):
        path = tmp_path / "script.py"
        path.write_text(source)
        return str(path)

    return script


def run(*argv):
    return cli.main(["run", "--log-level=warning", *argv])


@pytest.mark.parametrize("argv", [["--version"], ["--help"], ["-h"], [], ["run", "--help"], ["run", "-h"]])
def test_asking_for_help_or_version_is_no_error(argv, capsys):
    assert cli.main(argv) == 0
    said = capsys.readouterr()
    assert said.out
    assert said.err == ""


def test_version(capsys):
    cli.main(["--version"])
    assert capsys.readouterr().out == f"elastic-core {version('elastic-core')}\n"


def test_help_names_every_command(capsys):
    cli.main(["--help"])
    said = capsys.readouterr().out
    assert all(f"\n  {command} " in said for command in COMMANDS)


def test_help_of_run_names_the_flags(capsys):
    cli.main(["run", "--help"])
    said = capsys.readouterr().out
    assert all(flag in said for flag in ("--nnodes", "--nproc-per-node", "--max-restarts", "--result-file"))


COMMANDS = ("run", "explain", "plugins", "status", "drain", "serve", "doctor")


def flags_of(text):
    """Those that a help explains."""
    return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.M))


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_a_command(name, flag, capsys):
    """What it does, its flags, an example of these, its exit codes."""
    cli.main(["run", "--help"])
    of_run = capsys.readouterr().out
    flags_of_run = flags_of(of_run) if name in ("explain", "doctor") else set()
    assert cli.main([name, flag]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert max(map(len, said.out.splitlines())) <= 102
    usage, about, *_, example, codes = said.out.split("\n\n")
    assert usage.startswith(f"usage: elastic {name}")
    assert about.strip()
    (line,) = re.fullmatch(r"example:\n  (.*)", example).groups()
    assert line.split()[:2] == ["elastic", name]
    assert set(re.findall(r"--[\w-]+", line)) <= flags_of(said.out) | flags_of_run
    told = [int(code) for code in re.findall(r"^  (\d+)  ", codes, re.M)]
    assert told[0] == 0
    assert set(told) <= set(ExitCode)
    assert (told == sorted(set(ExitCode) - {ExitCode.NOT_FOUND})) == (name == "run")


def test_help_among_other_words(capsys):
    assert cli.main(["explain", "--json", "--nnodes", "2", "--help"]) == 0
    assert cli.main(["plugins", "--json", "--help"]) == 0
    assert capsys.readouterr().out.count("usage: ") == 2
    assert cli.main(["explain", "train.py", "--help"]) == 0
    assert "usage: " not in capsys.readouterr().out


def test_an_unknown_command(capsys):
    assert cli.main(["walk"]) == 2
    assert capsys.readouterr().err == (
        "elastic: elastic: expected a command (run, explain, plugins, status, drain, serve, doctor), found 'walk'; "
        "see elastic --help\n"
    )


def test_run(script, capfd):
    assert run("--nproc-per-node=2", script("import os; print('rank', os.environ['RANK'])")) == 0
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "rank 0", "rank 1"]


def test_run_with_arguments_of_the_script(script, capfd):
    assert run(script("import sys; print(sys.argv[1:])"), "--json", "--nnodes=7", "${local_rank}") == 0
    assert capfd.readouterr().out == "['--json', '--nnodes=7', '0']\n"


def test_run_a_script_that_fails(script, capfd):
    assert run(script("raise ValueError('no such layer')")) == 1
    said = capfd.readouterr().err
    assert "failed: rank 0: exit code 1; no restart is allowed (--max-restarts=0)" in said
    assert "First failure: rank 0 (local rank 0, pid" in said
    assert "    ValueError: no such layer\n" in said


def test_run_with_several_mistakes(script, capsys):
    assert run("--nnodes=0", "--max-restarts=x", "--no-such-flag", script("")) == 2
    said = capsys.readouterr().err
    assert "problems with the configuration" in said
    assert all(name in said for name in ("--nnodes", "--max-restarts", "--no-such-flag"))


def test_run_without_a_script(capsys):
    assert run() == 2
    assert "script" in capsys.readouterr().err


def test_run_with_a_script_that_is_not_there(capsys):
    assert run("no-such-script.py") == 2
    assert "no-such-script.py" in capsys.readouterr().err


def test_run_with_an_unknown_backend(script, capsys):
    assert run("--rdzv-backend=nobody", script("")) == 2
    assert "there is no rendezvous backend 'nobody' here" in capsys.readouterr().err


def test_run_that_is_asked_to_leave(script, capfd):
    asks = script("import os, signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()")
    assert run(asks) == 143
    assert "ended: the agent received SIGTERM and stopped its workers" in capfd.readouterr().err


@pytest.fixture
def interruptible():
    """Also where this process was started in the background, by a shell that has it ignore the keyboard."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_run_that_is_interrupted(script, capfd, tmp_path):
    asks = script("import os, signal; os.kill(os.getppid(), signal.SIGINT); signal.pause()")
    result = tmp_path / "result.json"
    assert run("--signals-to-handle=SIGTERM", f"--result-file={result}", asks) == 130
    said = capfd.readouterr().err
    assert said.endswith("ended: interrupted from the keyboard\n")
    assert "Traceback" not in said
    assert json.loads(result.read_text())["state"] == "STOPPED"


def test_the_log_follows_the_flags(script, capfd):
    assert cli.main(["run", "--log-format=json", "--log-level=info", script("")]) == 0
    events = [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]
    assert events == ["run started", "round formed", "workers started", "agent finished"]


def test_the_log_is_for_people_else(script, capfd):
    assert cli.main(["run", "--rdzv-id=job", script("")]) == 0
    first = capfd.readouterr().err.splitlines()[0]
    assert "info     run started: run_id=job backend=local script=" in first


def test_the_result_of_a_success(script, tmp_path):
    path = tmp_path / "result.json"
    assert run(f"--result-file={path}", "--rdzv-id=job", script("")) == 0
    content = json.loads(path.read_text())
    assert (content["state"], content["exit_code"], content["run_id"], content["error"]) == (
        "SUCCEEDED",
        0,
        "job",
        None,
    )
    assert [fact["round"] for fact in content["rounds"]] == [1]


def test_the_result_of_a_failure(script, tmp_path):
    path = tmp_path / "result.json"
    assert run(f"--result-file={path}", "--max-restarts=1", script("import sys; sys.exit(3)")) == 1
    content = json.loads(path.read_text())
    assert (content["state"], content["exit_code"], content["restart_count"]) == ("FAILED", 1, 1)
    assert content["reason"] == "rank 0: exit code 3; all 1 restarts are used (--max-restarts)"
    assert [failure["exitcode"] for failure in content["failures"]] == [3, 3]
    assert content["first_failure"]["round"] == 2
    assert content["restarts"][0]["cause"] == "failure"


def test_a_result_that_cannot_be_written_is_found_before_the_run(script, tmp_path, capfd):
    ran = tmp_path / "ran"
    assert run(f"--result-file={tmp_path}/no/result.json", script(f"open({str(ran)!r}, 'w')")) == 2
    assert "--result-file: expected a file in a folder that can be written" in capfd.readouterr().err
    assert not ran.exists()


def test_a_result_that_can_no_longer_be_written_does_not_change_how_the_job_ended(script, tmp_path, capfd):
    folder = tmp_path / "results"
    folder.mkdir()
    assert run(f"--result-file={folder}/result.json", script(f"import os; os.rmdir({str(folder)!r})")) == 0
    said = capfd.readouterr().err
    assert f"elastic: the outcome could not be written to {folder}/result.json: No such file or directory" in said


@pytest.mark.parametrize("error", [ValueError("circular"), TypeError("no key"), RecursionError("too deep")])
@pytest.mark.parametrize(("source", "code"), [("", 0), ("import sys; sys.exit(3)", 1)])
def test_a_result_that_cannot_be_told_does_not_change_how_the_job_ended(
    error, source, code, script, tmp_path, capfd, monkeypatch
):
    def refuse(path, content):
        raise error

    monkeypatch.setattr(result_file, "write", refuse)
    path = tmp_path / "result.json"
    assert run(f"--result-file={path}", script(source)) == code
    said = capfd.readouterr().err
    assert f"elastic: the outcome could not be written to {path}: {type(error).__name__}: {error}; the job" in said
    assert "Traceback" not in said


def test_what_a_script_wrote_need_not_be_json(script, tmp_path):
    path = tmp_path / "result.json"
    writes = 'import os, sys; open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write(\'{"loss": NaN}\'); sys.exit(3)'
    assert run(f"--result-file={path}", script(writes)) == 1
    assert json.loads(path.read_text())["first_failure"]["error_file_data"] == {"loss": "NaN"}


def test_torchruns_interval_of_nothing(script):
    assert run("--monitor-interval=0", script("")) == 0


def test_explain(script, capsys, monkeypatch):
    script("")
    monkeypatch.setenv("ELASTIC_MAX_RESTARTS", "4")
    assert cli.main(["explain", "--nproc-per-node=3"]) == 0
    said = capsys.readouterr().out
    assert "--nproc-per-node" in said
    assert "ELASTIC_MAX_RESTARTS" in said


@pytest.mark.parametrize(
    "line",
    [
        "--json --nproc-per-node=3 script.py",
        "--nproc-per-node=3 --json script.py --x",
        "--nproc-per-node 3 --json -- script.py --json",
        "--nproc-per-node=3 --json",
    ],
)
def test_explain_as_json(line, script, capsys):
    script("")
    assert cli.main(["explain", *line.split()]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["settings"]["nproc_per_node"]["value"] == 3
    assert told["script"] == ("script.py" if "script.py" in line else None)
    assert told["script_args"] == line.partition("script.py")[2].split()


def test_a_word_of_the_scripts_is_not_ours(script, capsys):
    script("")
    assert cli.main(["explain", "--", "script.py", "--json"]) == 0
    assert "script: script.py --json" in capsys.readouterr().out


def test_explain_what_is_wrong(capsys):
    assert cli.main(["explain", "--nnodes=0"]) == 2
    assert "--nnodes" in capsys.readouterr().err


def test_plugins(capsys):
    assert cli.main(["plugins"]) == 0
    assert "local" in capsys.readouterr().out


def test_plugins_as_json(capsys):
    assert cli.main(["plugins", "--json"]) == 0
    assert "local" in json.dumps(json.loads(capsys.readouterr().out))


def test_plugins_takes_nothing_else(capsys):
    assert cli.main(["plugins", "--jsno"]) == 2
    assert "elastic plugins: expected nothing but --json, found '--jsno'" in capsys.readouterr().err


BROKEN_BACKEND = """
from elastic_core.hooks import RendezvousBackendRecord, hookimpl


def make(params):
    raise ZeroDivisionError("a fault of mine")


@hookimpl
def elastic_rendezvous_backends():
    return [RendezvousBackendRecord("faulty", "a test", make)]
"""


@pytest.fixture
def faulty_backend(tmp_path, monkeypatch):
    info = tmp_path / "faulty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[elastic]\nfaulty = faulty_plugin\n")
    (tmp_path / "faulty_plugin.py").write_text(BROKEN_BACKEND)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("faulty_plugin", None)


def test_a_fault_of_a_plugin_is_an_internal_error_with_its_traceback(faulty_backend, script, capfd):
    assert run("--rdzv-backend=faulty", script("")) == 70
    said = capfd.readouterr().err
    assert "Traceback (most recent call last)" in said
    assert "elastic: internal error: ZeroDivisionError: a fault of mine; please report it" in said


def test_an_internal_error_of_any_command_has_its_code(tmp_path, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    before = os.getcwd()
    os.chdir(gone)
    gone.rmdir()
    try:
        assert cli.main(["explain"]) == 70
    finally:
        os.chdir(before)
    assert "internal error: FileNotFoundError" in capsys.readouterr().err


@pytest.fixture
def broken_stream():
    """A text stream whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    yield stream
    stream.close()


def test_a_broken_stdout_is_no_error(broken_stream, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", broken_stream)
    assert cli.main(["plugins"]) == 0
    assert capsys.readouterr().err == ""


def test_an_error_that_nobody_hears_has_its_code(broken_stream, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", broken_stream)
    assert cli.main(["walk"]) == 2
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["walk"]) == 2
    assert capsys.readouterr().out == ""


def test_a_plugin_that_does_not_load_is_a_warning(tmp_path, monkeypatch, script, capfd):
    info = tmp_path / "lame-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lame\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[elastic]\nlame = no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(script("")) == 0
    said = capfd.readouterr().err
    assert "plugin failed:" in said
    assert "lame" in said


GREEDY = """
from elastic_core.hooks import Option, hookimpl


@hookimpl
def elastic_add_options():
    return [Option("max-restarts", int, 9, "ours"), Option("team", str, "blue", "a test")]
"""


@pytest.fixture
def greedy_plugin(tmp_path, monkeypatch):
    info = tmp_path / "greedy-1.4.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy\nVersion: 1.4\n")
    (info / "entry_points.txt").write_text("[elastic]\ngreedy = greedy_plugin\n")
    (tmp_path / "greedy_plugin.py").write_text(GREEDY)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("greedy_plugin", None)


def test_an_option_of_a_plugin_that_is_named_like_a_setting_is_left_out_and_told(greedy_plugin, script, capfd):
    assert run("--max-restarts=0", "--team=red", script("")) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert "plugin failed: plugin=greedy distribution=greedy version=1.4 option=max-restarts" in line
    assert "ELASTIC_DISABLE_PLUGINS=greedy" in line
    assert cli.main(["plugins"]) == 0
    assert "  option max-restarts: run (elastic-core " in capfd.readouterr().out
    assert cli.main(["explain", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (list(told["plugin_options"]), told["settings"]["max_restarts"]["value"]) == (["team"], 0)


def test_the_console_script(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["elastic", "walk"])
    with pytest.raises(SystemExit) as left:
        cli.entry_point()
    assert left.value.code == 2


# -- seen from outside


def outside(*argv, **kwargs):
    return subprocess.run([*ELASTIC, *argv], text=True, timeout=60, **{"capture_output": True, **kwargs})


def test_the_module_is_the_command():
    done = outside("--version")
    assert (done.returncode, done.stdout) == (0, f"elastic-core {version('elastic-core')}\n")
    assert outside("walk").returncode == 2


def test_a_reader_who_has_seen_enough_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = outside("plugins", capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("source", ["import sys; sys.exit(3)", "raise ValueError('x')"])
def test_a_broken_stderr_does_not_change_the_exit_code(source, script):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = outside("run", script(source), capture_output=False, stdout=subprocess.PIPE, stderr=writer)
    finally:
        os.close(writer)
    assert done.returncode == 1


def test_a_stalled_stderr_does_not_hold_the_job_up(script):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"." * 4096)
        os.set_blocking(writer, True)
        done = outside("run", script("print('done')"), capture_output=False, stdout=subprocess.PIPE, stderr=writer)
    finally:
        os.close(reader)
        os.close(writer)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_closed_stderr_does_not_change_the_exit_code_and_nothing_goes_to_stdout(script):
    path = script("import sys; sys.exit(3)")
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *ELASTIC, "run", path]
    done = subprocess.run(command, text=True, timeout=60, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (1, "")


def test_closed_standard_streams_do_not_take_the_workers_output(tmp_path):
    """Without them, the first pipes and files would get their numbers."""
    flags = "-r 3 --log-dir=logs --rdzv-id=job --nproc-per-node=2"
    command = f"exec {sys.executable} -m elastic_core run {flags} --no-python echo x"
    done = subprocess.run(["sh", "-c", f"{command} <&- >&- 2>&-"], cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0
    folder = tmp_path / "logs" / "job" / "round-1"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "rank-0.out": "x\n",
        "rank-0.err": "",
        "rank-1.out": "x\n",
        "rank-1.err": "",
    }


@pytest.mark.parametrize("form", ["", "--json"])
def test_explain_shows_no_token(form, capsys):
    flags = "--rdzv-backend local --rdzv-conf user=me,password=hidden --health-port 1 --health-conf token=hidden"
    assert cli.main(["explain", *flags.split(), *form.split()]) == 0
    shown = capsys.readouterr().out
    assert "hidden" not in shown
    assert shown.count("***") == 2
