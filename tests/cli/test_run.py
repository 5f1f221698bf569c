"""`elastic run`, in this process where possible."""

from __future__ import annotations

import json

import pytest

from elastic_core import cli, report

pytestmark = pytest.mark.integration


def run(*argv):
    return cli.main(["run", "--log-level=warning", *argv])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ["script"]),
        ("no-such-script.py", ["no-such-script.py"]),
        ("--rdzv-backend=missing script.py", ["no rendezvous backend named 'missing' is installed"]),
        ("--nnodes=0 --max-restarts=x --no-such script.py", ["3 problems", "--nnodes", "--max-restarts", "--no-such"]),
    ],
)
def test_bad_configuration_exits_2(line, words, script, capsys):
    script("")
    assert run(*line.split()) == 2
    output = capsys.readouterr().err
    assert all(each in output for each in words)


@pytest.mark.parametrize(
    ("flags", "variable", "file", "origin"),
    [
        (["--rdzv-conf=master_port=x"], "", "", "--rdzv-conf"),
        ([], "master_port=x", "", "ELASTIC_RDZV_CONF"),
        ([], "", "rdzv_conf = {master_port = 'x'}", "elastic.toml: rdzv_conf"),
    ],
)
def test_bad_backend_option_is_reported_with_its_source(
    flags, variable, file, origin, script, tmp_path, monkeypatch, capfd
):
    (tmp_path / "elastic.toml").write_text(file)
    monkeypatch.setenv("ELASTIC_RDZV_CONF", variable)
    assert cli.main(["run", *flags, script("")]) == 2
    assert capfd.readouterr().err == f"elastic: {origin}: master_port: expected a whole number, found 'x'\n"


def test_null_log_folder_means_no_log_files(script, capfd):
    assert run("--log-dir=/dev/null", script("print('done')")) == 0
    assert capfd.readouterr() == ("done\n", "")


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_exits_130(script, capfd, tmp_path):
    signals = script("import os, signal; os.kill(os.getppid(), signal.SIGINT); signal.pause()")
    result = tmp_path / "result.json"
    assert run("--signals-to-handle=SIGTERM", f"--result-file={result}", signals) == 130
    output = capfd.readouterr().err
    assert output.endswith(" interrupted from the keyboard\n")
    assert "Traceback" not in output
    assert json.loads(result.read_text())["state"] == "STOPPED"


def test_log_flags_set_format_and_level(script, capfd):
    assert cli.main(["run", "--log-format=json", "--log-level=info", "--monitor-interval=0", script("")]) == 0
    events = [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]
    events = [event for event in events if event != "still waiting"]  # logged on slow machines
    assert events == ["run started", "round formed", "workers started", "agent finished"]


def test_result_file_describes_a_failure(script, tmp_path):
    path = tmp_path / "result.json"
    assert run(f"--result-file={path}", "--max-restarts=1", script("import sys; sys.exit(3)")) == 1
    content = json.loads(path.read_text())
    assert (content["state"], content["exit_code"], content["restart_count"]) == ("FAILED", 1, 1)
    assert content["reason"] == "rank 0: exit code 3; the only restart has been used (--max-restarts=1)"
    assert [failure["exitcode"] for failure in content["failures"]] == [3, 3]
    assert content["first_failure"]["round"] == 2
    assert content["restarts"][0]["cause"] == "failure"


def test_unwritable_result_file_stops_the_run_early(script, tmp_path, capfd):
    ran = tmp_path / "ran"
    assert run(f"--result-file={tmp_path}/no/result.json", script(f"open({str(ran)!r}, 'w')")) == 2
    assert "--result-file: cannot write to " in capfd.readouterr().err
    assert not ran.exists()


def test_vanished_result_folder_keeps_the_exit_code(script, tmp_path, capfd):
    folder = tmp_path / "results"
    folder.mkdir()
    assert run(f"--result-file={folder}/result.json", script(f"import os; os.rmdir({str(folder)!r})")) == 0
    output = capfd.readouterr().err
    assert f"its outcome could not be written to {folder}/result.json: No such file or directory" in output


@pytest.mark.parametrize("error", [ValueError("circular"), TypeError("no key"), RecursionError("too deep")])
@pytest.mark.parametrize(("source", "code"), [("", 0), ("import sys; sys.exit(3)", 1)])
def test_result_file_error_keeps_the_exit_code(error, source, code, script, tmp_path, capfd, monkeypatch):
    def refuse(path, content):
        raise error

    monkeypatch.setattr(report, "write_result", refuse)
    path = tmp_path / "result.json"
    assert run(f"--result-file={path}", script(source)) == code
    output = capfd.readouterr().err
    assert (
        f"elastic: the job has ended, but its outcome could not be written to {path}: {type(error).__name__}: {error}"
        in output
    )
    assert "Traceback" not in output


BROKEN_BACKEND = """
from elastic_core.plugin import RendezvousBackendRecord, hookimpl


def make(context, params):
    raise ZeroDivisionError("a bug in the plugin")


@hookimpl
def elastic_rendezvous_backends():
    return [RendezvousBackendRecord("faulty", "a test", make)]
"""


def test_plugin_error_names_plugin_with_traceback_on_debug(put_on_path, script, capfd):
    put_on_path("faulty", {"elastic": ["faulty = faulty_plugin"]}, {"faulty_plugin": BROKEN_BACKEND})
    assert run("--rdzv-backend=faulty", script("")) == 2
    output = capfd.readouterr().err
    assert "Traceback (most recent call last)" not in output
    assert "the rendezvous backend 'faulty' of plugin 'faulty' of faulty 1.0" in output
    assert "failed: ZeroDivisionError: a bug in the plugin; raised in " in output
    assert "faulty_plugin.py, line 6; report it to the plugin's authors" in output
    assert run("--log-level=debug", "--rdzv-backend=faulty", script("")) == 2
    assert "Traceback (most recent call last)" in capfd.readouterr().err


def test_plugin_that_fails_to_load_is_a_warning(put_on_path, script, capfd):
    put_on_path("lame", {"elastic": ["lame = no_such_module"]})
    assert run(script("")) == 0
    output = capfd.readouterr().err
    assert "plugin failed:" in output
    assert "lame" in output


GREEDY = """
from elastic_core.plugin import Option, hookimpl


@hookimpl
def elastic_add_options():
    return [Option("max-restarts", int, 9, "ours"), Option("team", str, "blue", "a test")]
"""


def test_plugin_option_named_like_a_setting_is_omitted(put_on_path, script, capfd):
    put_on_path("greedy", {"elastic": ["greedy = greedy_plugin"]}, {"greedy_plugin": GREEDY}, version="1.4")
    assert run("--max-restarts=0", "--team=red", script("")) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert "plugin failed: plugin=greedy distribution=greedy version=1.4 option=max-restarts" in line
    assert "ELASTIC_DISABLE_PLUGINS=greedy" in line
    assert cli.main(["plugins"]) == 0
    assert "  option max-restarts: run (elastic-core " in capfd.readouterr().out
    assert cli.main(["explain", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["plugin_options"].keys() & {"team", "max-restarts", "max_restarts"} == {"team"}
    assert document["settings"]["max_restarts"]["value"] == 0


def test_flag_that_two_plugins_add_is_explained(put_on_path, script, capfd):
    for name in ("one", "other"):
        put_on_path(name, {"elastic": [f"{name} = {name}_plugin"]}, {f"{name}_plugin": GREEDY})
    assert run("--team=red", script("")) == 2
    output = capfd.readouterr().err
    assert "--team: unknown flag" in output
    assert "the option 'team' is provided by plugin 'one' of one 1.0 and plugin 'other' of other 1.0" in output


PAGING = """
from elastic_core.plugin import Option, WorkerStarterRecord, hookimpl


@hookimpl
def elastic_add_options():
    return [Option("pager-token", str, None, "a test", secret=True), Option("team", str, "blue", "a test")]


@hookimpl
def elastic_worker_starters():
    return [WorkerStarterRecord("paging", "a test", print, explain=lambda context, work: dict(context.options))]
"""


@pytest.fixture
def paging(put_on_path):
    put_on_path("paging", {"elastic": ["paging = paging_plugin"]}, {"paging_plugin": PAGING})


@pytest.mark.usefixtures("paging")
def test_workers_do_not_inherit_secret_options(script, monkeypatch, capfd):
    monkeypatch.setenv("ELASTIC_PAGER_TOKEN", "hush")
    monkeypatch.setenv("ELASTIC_TEAM", "red")
    names = ("ELASTIC_PAGER_TOKEN", "ELASTIC_TEAM")
    assert run(script(f"import os; print('found', *[os.environ.get(name) for name in {names}])")) == 0
    assert "found None red" in capfd.readouterr().out


@pytest.mark.usefixtures("paging")
def test_explained_starter_has_the_options_that_its_plugin_adds(script, capfd):
    assert cli.main(["explain", "--json", "--team=red", "--worker-starter=paging", script("")]) == 0
    assert json.loads(capfd.readouterr().out)["worker_starter"]["team"] == "red"
