"""The commands of the command line and what they print, in this process; `run` is elsewhere."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import version

import pytest

from elastic_core import cli
from elastic_core.errors import ExitCode


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
        "elastic: command: expected a command (run, explain, plugins, status, drain, serve, doctor), found 'walk'; "
        "see elastic --help\n"
    )


def test_misspelled_command_gets_a_suggestion(capsys):
    assert cli.main(["rum"]) == 2
    assert capsys.readouterr().err.endswith("found 'rum'; did you mean 'run'?\n")


def test_commands_work_where_the_current_folder_was_removed(script, capsys, monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setenv("PWD", str(gone))
    gone.rmdir()
    assert cli.main(["plugins"]) == 0
    assert cli.main(["explain", script("")]) == 0
    assert cli.main(["run", "--standalone", "train.py"]) == 2
    assert f"{gone}/train.py does not exist" in capsys.readouterr().err


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
    assert "--jsno: unknown flag; did you mean --json?" in capsys.readouterr().err
    assert cli.main(["plugins", "c10d"]) == 2
    assert "elastic plugins: expected only flags, found c10d" in capsys.readouterr().err


def test_an_internal_error_of_any_command_has_its_code(capsys):
    assert cli.main(["explain", 7]) == 70  # no caller gives a number
    assert "internal error: " in capsys.readouterr().err


def test_the_console_script(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["elastic", "walk"])
    with pytest.raises(SystemExit) as left:
        cli.entry_point()
    assert left.value.code == 2


@pytest.mark.parametrize("form", ["", "--json"])
def test_explain_shows_no_token(form, capsys):
    flags = "--rdzv-backend local --rdzv-conf user=me,password=hidden --health-port 1 --health-conf token=hidden"
    assert cli.main(["explain", *flags.split(), *form.split()]) == 2  # they have no such options
    shown, told = capsys.readouterr()
    assert "hidden" not in shown + told
    assert shown.count("***") == 2


def test_a_table_of_a_misspelt_backend_is_told(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "elastic.toml").write_text("[rendezvous.locla]\nmaster_port = 7\n[rendezvous.consul]\nkey = 1\n")
    for command in ("explain", "run"):
        assert cli.main([command, "--rdzv-backend", "local", "train.py"]) == 2
        told = capsys.readouterr().err
        assert "elastic.toml: rendezvous.locla: expected the name of a rendezvous backend" in told
        assert "did you mean 'local'?" in told
        assert "consul" not in told


def test_explain_shows_the_configuration_if_the_worker_starter_is_missing(script, capsys):
    flags = ["--worker-starter=nonesuch", "--watchdog=none-either", "--max-restarts=7", script("")]
    assert cli.main(["explain", *flags]) == 2
    shown, told = capsys.readouterr()
    assert re.search(r"^max_restarts +7 ", shown, re.M)
    assert "nonesuch" in told
    assert "none-either" in told


def test_explain_tells_what_run_would_refuse(capsys):
    flags = "--rdzv-backend local --rdzv-conf master_prot=1 --watchdog nonesuch train.py"
    assert cli.main(["explain", *flags.split()]) == 2
    shown, told = capsys.readouterr()
    assert "master_prot" in shown
    assert "--rdzv-conf: master_prot: unknown option; did you mean 'master_port'?" in told
    assert "nonesuch" in told


def test_options_of_plugins_are_reported_with_the_flags(capsys):
    assert cli.main(["run", "--rdzv-backend=local", "--rdzv-conf=master_prot=1", "--max-restarts=x", "train.py"]) == 2
    told = capsys.readouterr().err
    assert "--max-restarts: " in told
    assert "--rdzv-conf: master_prot: unknown option" in told
