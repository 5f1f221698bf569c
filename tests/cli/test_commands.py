"""The commands and their output, in this process; test_run.py covers `run`."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from elastic_core import cli
from elastic_core.errors import ExitCode


@pytest.mark.parametrize(
    "argv", [["--version"], ["--help"], ["-h"], ["help"], ["-V"], [], ["run", "--help"], ["run", "-h"]]
)
def test_help_and_version_exit_0(argv, capsys):
    assert cli.main(argv) == 0
    output = capsys.readouterr()
    assert output.out
    assert output.err == ""


COMMANDS = ("run", "explain", "plugins", "status", "drain", "serve", "doctor")


def flags_of(text):
    """The flags described in a help text."""
    return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.M))


@pytest.mark.parametrize("name", COMMANDS)
def test_command_help_has_flags_example_and_exit_codes(name, capsys):
    cli.main(["run", "--help"])
    of_run = capsys.readouterr().out
    flags_of_run = flags_of(of_run) if name in ("explain", "doctor") else set()
    assert cli.main([name, "--help"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert max(map(len, output.out.splitlines())) <= 102
    usage, about, *_, example, codes = output.out.split("\n\n")
    assert usage.startswith(f"usage: elastic {name}")
    assert about.strip()
    (line,) = re.fullmatch(r"example:\n  (.*)", example).groups()
    assert line.split()[:2] == ["elastic", name]
    assert set(re.findall(r"--[\w-]+", line)) <= flags_of(output.out) | flags_of_run
    listed = [int(code) for code in re.findall(r"^  (\d+)  ", codes, re.M)]
    assert listed[0] == 0
    assert set(listed) <= set(ExitCode)
    assert (listed == sorted(set(ExitCode) - {ExitCode.NOT_FOUND})) == (name == "run")


def test_help_flag_works_among_other_flags(capsys, script):
    assert cli.main(["explain", "--json", "--nnodes", "2", "--help"]) == 0
    assert cli.main(["plugins", "--json", "--help"]) == 0
    assert capsys.readouterr().out.count("usage: ") == 2
    assert cli.main(["explain", script(""), "--help"]) == 0
    assert "usage: " not in capsys.readouterr().out


def test_explain_shows_the_configuration_although_the_script_does_not_exist(capsys):
    assert cli.main(["explain", "--nnodes=2:4", "--rdzv-endpoint=node0", "--rdzv-id=job7", "absent.py"]) == 2
    output = capsys.readouterr()
    assert re.search(r"^nnodes +2:4 +--nnodes$", output.out, re.MULTILINE)
    assert re.fullmatch(r"elastic: script: .*/absent\.py does not exist; check the path\n", output.err)


def test_unknown_command_lists_known_ones(capsys):
    assert cli.main(["walk"]) == 2
    assert capsys.readouterr().err == (
        "elastic: command: expected a command (run, explain, plugins, status, drain, stop, serve, doctor), "
        "found 'walk'; see elastic --help\n"
    )


def test_commands_work_in_a_removed_folder(script, capsys, monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setenv("PWD", str(gone))
    gone.rmdir()
    assert cli.main(["plugins"]) == 0
    assert cli.main(["explain", script("")]) == 0
    assert cli.main(["run", "--standalone", "train.py"]) == 2
    assert f"{gone}/train.py does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "--json --nproc-per-node=3 script.py",
        "--nproc-per-node=3 --json script.py --x",
        "--nproc-per-node 3 --json -- script.py --json",
        "--nproc-per-node=3 --json",
    ],
)
def test_explain_json_has_settings_and_script(line, script, capsys):
    script("")
    assert cli.main(["explain", *line.split()]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["nproc_per_node"]["value"] == 3
    assert document["script"] == ("script.py" if "script.py" in line else None)
    assert document["script_args"] == line.partition("script.py")[2].split()


def test_script_argument_is_not_taken_as_own_flag(script, capsys):
    script("")
    assert cli.main(["explain", "--", "script.py", "--json"]) == 0
    assert "script: script.py --json" in capsys.readouterr().out


def test_plugins_rejects_other_arguments(capsys):
    assert cli.main(["plugins", "--jsno"]) == 2
    assert "--jsno: unknown flag; did you mean --json?" in capsys.readouterr().err
    assert cli.main(["plugins", "c10d"]) == 2
    assert "elastic plugins: expected only flags, found c10d" in capsys.readouterr().err


def test_internal_error_exits_70(capsys):
    assert cli.main(["explain", 7]) == 70  # not a string
    assert "internal error: " in capsys.readouterr().err


@pytest.mark.integration
def test_console_script_passes_on_the_exit_code():
    program = "import atexit, elastic_core.cli as cli\natexit.register(print, 'at exit')\ncli.entry_point()"
    done = subprocess.run([sys.executable, "-c", program, "walk"], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout) == (2, "at exit\n")


@pytest.mark.parametrize("form", ["", "--json"])
def test_explain_hides_secrets(form, capsys):
    flags = "--rdzv-backend local --rdzv-conf user=me,password=hidden --health-port 1 --health-conf token=hidden"
    assert cli.main(["explain", *flags.split(), *form.split()]) == 2  # unknown options
    shown, errors = capsys.readouterr()
    assert "hidden" not in shown + errors
    assert shown.count("***") == 2
    flags = "--rdzv-endpoint http://me:hid@hidden@node0:29400 --nnodes 2 --rdzv-id j"
    cli.main(["explain", *flags.split(), *form.split()])
    assert "hidden" not in capsys.readouterr().out


def test_misspelled_backend_table_gets_a_suggestion(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "elastic.toml").write_text("[rendezvous.locla]\nmaster_port = 7\n[rendezvous.consul]\nkey = 1\n")
    for command in ("explain", "run"):
        assert cli.main([command, "--rdzv-backend", "local", "train.py"]) == 2
        errors = capsys.readouterr().err
        assert "elastic.toml: rendezvous.locla: expected the name of a rendezvous backend" in errors
        assert "did you mean 'local'?" in errors
        assert "consul" not in errors


def test_explain_rejects_several_nodes_on_the_local_backend(capsys):
    assert cli.main(["explain", "--rdzv-backend=local", "--nnodes=2", "--rdzv-id=j", "--rdzv-endpoint=h:1"]) == 2
    errors = capsys.readouterr().err
    assert "'local' runs single-node jobs only" in errors
    assert "'local' needs no endpoint" in errors


@pytest.mark.parametrize("starter", [[], ["--worker-starter=no-starter"]])
def test_explain_shows_settings_and_what_run_would_reject(starter, capsys):
    flags = "--rdzv-backend local --rdzv-conf master_prot=1 --watchdog nonesuch --max-restarts=7 train.py"
    assert cli.main(["explain", *starter, *flags.split()]) == 2
    shown, errors = capsys.readouterr()
    assert "master_prot" in shown
    assert re.search(r"^max_restarts +7 ", shown, re.M)
    assert "--rdzv-conf: master_prot: unknown option; did you mean 'master_port'?" in errors
    assert "nonesuch" in errors
    assert ("no-starter" in errors) == bool(starter)


def test_explain_rejects_a_starter_that_would_fork_with_a_client_that_does_not_survive(capsys, script):
    flags = "--rdzv-backend etcd --rdzv-endpoint h:1 --rdzv-id j --nnodes 2 --worker-starter fork"
    assert cli.main(["explain", *flags.split(), script("")]) == 2
    assert "--worker-starter: fork forks the agent" in capsys.readouterr().err


def test_plugin_option_errors_are_reported_with_flag_errors(capsys):
    assert cli.main(["run", "--rdzv-backend=local", "--rdzv-conf=master_prot=1", "--max-restarts=x", "train.py"]) == 2
    errors = capsys.readouterr().err
    assert "--max-restarts: " in errors
    assert "--rdzv-conf: master_prot: unknown option" in errors


@pytest.mark.parametrize("command", ["status", "stop", "explain", "run"])
@pytest.mark.parametrize(
    ("origin", "flag", "variable", "file"),
    [
        ("--rdzv-conf", ["--rdzv-conf=read_timeout=abc"], "read_timeout=x", "read_timeout = 'x'"),
        ("ELASTIC_RDZV_CONF", [], "read_timeout=abc", "read_timeout = 'x'"),
        ("elastic.toml: rendezvous.c10d", [], "", "read_timeout = 'abc'"),
    ],
    ids=["flag", "variable", "file"],
)
def test_invalid_backend_option_is_reported_once_with_its_origin(
    tmp_path, monkeypatch, capsys, command, origin, flag, variable, file
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELASTIC_RDZV_CONF", variable)
    (tmp_path / "elastic.toml").write_text(f"[rendezvous.c10d]\n{file}\n")
    (tmp_path / "train.py").touch()
    script = ["train.py"] if command in ("explain", "run") else []
    assert cli.main([command, "--rdzv-endpoint=127.0.0.1:1", "--rdzv-id=job", *flag, *script]) == 2
    shown = "".join(capsys.readouterr())
    assert shown.count("read_timeout: expected") == 1
    assert f"{origin}: read_timeout: expected a number" in shown


@pytest.mark.parametrize(
    ("variable", "value", "commands"),
    [
        ("ELASTIC_RDZV_BACKEND", "no-backend", "status stop serve explain run"),
        ("PET_RDZV_BACKEND", "local", "status stop serve"),
        ("ELASTIC_RDZV_SECRET_FILE", "/no/such/file", "status stop run"),
        ("ELASTIC_WATCHDOG", "no-watchdog", "explain run"),
        ("ELASTIC_EVENT_LOG_HANDLER", "no-handler", "explain run"),
    ],
)
def test_every_command_names_the_variable_that_it_rejects(script, monkeypatch, capsys, variable, value, commands):
    path = script("")
    monkeypatch.setenv(variable, value)
    for command in commands.split():
        words = [] if command == "serve" else ["--rdzv-id=job"]
        words += [path] if command in ("explain", "run") else []
        assert cli.main([command, "--rdzv-endpoint=127.0.0.1:1", *words]) == 2
        assert f"elastic: {variable}: " in capsys.readouterr().err
