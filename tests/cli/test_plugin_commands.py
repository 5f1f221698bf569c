"""Commands added by plugins."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys

import pytest

from elastic_core import cli

PLUGIN = """
import argparse

from elastic_core.plugin import CommandRecord, Option, hookimpl


def forget(context, operands):
    print(*operands, context.options, dict(context.settings))
    context.log.warning("forgotten", job=operands[0])
    return 0 if context.options["really"] else 7


def parses(context, words):
    print(words)
    parser = argparse.ArgumentParser("elastic parses")
    parser.add_argument("--depth", type=int)
    return parser.parse_args(words).depth


def breaks(context, operands):
    raise ZeroDivisionError("a bug in the plugin")


def returns(context, operands):
    return {"large": 300, "text": "9"}[operands[0]]


def audit(context, operands):
    print(context.plan.settings.rdzv_endpoint, *context.settings)


def bare(context, operands):
    print(context.options, dict(context.settings))


def rehearse(context, words):
    print(context.run_id, context.plan.settings.nnodes, context.settings["rdzv_backend"], context.options, *words)
    print(context.plan.error)


REQUIRED = {"rdzv_endpoint": "audit needs an endpoint"}


@hookimpl
def elastic_add_options():
    return [Option("team", str, "blue", "who asks")]


@hookimpl
def elastic_commands():
    options = (Option("really", bool, False, "do it"), Option("how-often", int, 1, "times", least=1))
    settings = ("rdzv_endpoint", "rdzv_conf")
    return [
        CommandRecord("forget", "forget a job", forget, options, ("lose",), settings, ("RUN_ID",)),
        CommandRecord("parses", "read words", parses, None),
        CommandRecord("breaks", "break", breaks),
        CommandRecord("returns", "return a value", returns, operands=("WHICH",)),
        CommandRecord("rehearse", "try", rehearse, options, like_run=True, about="Tries.", codes={3: "tired"}),
        CommandRecord("audit", "look", audit, settings={"rdzv_endpoint": "where to look"}, required=REQUIRED),
        CommandRecord("bare", "work always", bare, options, settings=None),
        CommandRecord("misnamed", "use an unknown setting", breaks, (), (), ("rdzv_endpont",)),
    ]
"""


@pytest.fixture
def installed(put_on_path):
    """A function that installs a plugin with the given source, and returns its folder."""

    def installed(source=PLUGIN):
        return put_on_path("commander", {"elastic": ["commander = commander_plugin"]}, {"commander_plugin": source})

    return installed


def test_plugin_command_gets_flags_settings_and_operand(installed, monkeypatch, capfd):
    installed()
    monkeypatch.setenv("ELASTIC_RDZV_ENDPOINT", "node0:1")
    monkeypatch.setenv("ELASTIC_TEAM", "red")
    assert cli.main(["forget", "--how-often=3", "job7", "--rdzv-conf", "a=1,b=2"]) == 7
    output = capfd.readouterr()
    options = {"team": "red", "really": False, "how-often": 3}
    settings = {"rdzv_endpoint": "node0:1", "rdzv_conf": {"a": "1", "b": "2"}}
    assert output.out == f"job7 {options} {settings}\n"
    assert "forgotten" in output.err
    assert cli.main(["lose", "job7", "--really", "--log-level=error"]) == 0
    assert "forgotten" not in capfd.readouterr().err
    assert cli.main(["breaks", "--log-level=debug"]) == 2
    assert "Traceback" in capfd.readouterr().err


def test_command_like_run_gets_plan_and_script(installed, monkeypatch, capfd, tmp_path):
    installed()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elastic.toml").write_text("nnodes = '1:4'\nrdzv-id = 'job'\nrdzv-endpoint = 'node0'\n")
    flags = ["--rdzv-backend", "c10d", "--plugins=commander,elastic-c10d", "--team", "red", "--really"]
    (tmp_path / "train.py").touch()
    assert cli.main(["rehearse", *flags, "train.py", "--really=no"]) == 0
    options = {"team": "red", "really": True, "how-often": 1}
    assert capfd.readouterr().out == f"job 1:4 c10d {options} train.py --really=no\nNone\n"
    assert cli.main(["rehearse", *flags, "absent.py"]) == 0
    assert "absent.py does not exist" in capfd.readouterr().out
    assert cli.main(["rehearse", "--rdzv-backend=c1d"]) == 0
    assert "did you mean 'c10d'" in capfd.readouterr().out
    assert cli.main(["rehearse", "--how-often=0", "--nnodes=x"]) == 2
    message = capfd.readouterr().err
    assert all(flag in message for flag in ("--how-often: ", "--nnodes: "))
    assert cli.main(["rehearse", "--help"]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith("usage: elastic rehearse [flags] [flags of elastic run] [script]\n\nTries.\n")
    assert ("--how-often N" in shown, "--nnodes" in shown, "3  tired" in shown) == (True, False, True)


def test_command_requires_settings_and_replaces_their_help(installed, monkeypatch, capfd):
    installed()
    assert cli.main(["audit", "--team=red"]) == 2
    assert "--rdzv-endpoint: audit needs an endpoint" in capfd.readouterr().err
    assert cli.main(["audit", "--help"]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith("usage: elastic audit --rdzv-endpoint HOST[:PORT] [flags]\n")
    assert "\n      where to look (default: unset;" in shown
    monkeypatch.setenv("ELASTIC_RDZV_ENDPOINT", "node0:1")
    assert cli.main(["audit"]) == 0
    assert capfd.readouterr().out == "node0:1 rdzv_endpoint\n"


def test_command_without_settings_ignores_variables_and_config_file(installed, monkeypatch, capfd, tmp_path):
    installed()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elastic.toml").write_text("nnodes = 'x'")
    monkeypatch.setenv("ELASTIC_LOG_LEVEL", "loud")
    assert cli.main(["forget", "job7"]) == 2
    assert "loud" in capfd.readouterr().err
    assert cli.main(["bare", "--really"]) == 0
    assert capfd.readouterr() == ("{'team': 'blue', 'really': True, 'how-often': 1} {}\n", "")


def test_plugin_command_appears_in_help(installed, capsys):
    installed()
    assert cli.main(["forget", "--help"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("usage: elastic forget RUN_ID [flags]\n\nforget a job\n")
    assert all(flag in output for flag in ("--really", "--how-often N", "--rdzv-endpoint", "ELASTIC_RDZV_ENDPOINT"))
    assert "ELASTIC_HOW_OFTEN" not in output
    cli.main(["--help"])
    assert re.search("\n  forget +forget a job\n", capsys.readouterr().out)


def test_summaries_are_aligned(installed, capsys):
    installed(PLUGIN.replace('"parses", "read words"', '"parses-a-long-line", "read words"'))
    assert cli.main(["--help"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if re.match("  [a-z]", line)]
    assert {"run", "doctor", "parses-a-long-line"} <= {line.split()[0] for line in lines}
    assert {re.match(r"  \S+ +", line).end() for line in lines} == {len("  parses-a-long-line  ")}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["forget"], "expected RUN_ID, found nothing"),
        (["forget", "--realy", "job7"], "did you mean --really?"),
        (["forget", "--how-often=0", "job7"], "--how-often: "),
        (["misnamed"], "the plugin's command 'misnamed' asks for unknown settings: rdzv_endpont"),
        (["forgt", "job7"], "did you mean 'forget'?"),
        (["returns", "large"], "its factory must return None or an exit code from 0 to 255, but returned 300"),
        (["returns", "text"], "the command 'returns' of plugin 'commander' of commander 1.0 failed: TypeError"),
        (["breaks"], "the command 'breaks' of plugin 'commander' of commander 1.0 failed: ZeroDivisionError"),
    ],
)
def test_errors_of_user_and_plugin_exit_2(installed, argv, message, capfd):
    installed()
    assert cli.main(argv) == 2
    assert message in capfd.readouterr().err


def test_missing_doctor_names_the_reason(monkeypatch, capsys):
    monkeypatch.setenv("ELASTIC_DISABLE_PLUGINS", "elastic-doctor")
    assert cli.main(["doctor"]) == 2
    assert "\n  blocked by ELASTIC_DISABLE_PLUGINS: plugin 'doctor' of elastic-doctor" in capsys.readouterr().err
    monkeypatch.delenv("ELASTIC_DISABLE_PLUGINS")
    monkeypatch.setattr(importlib.metadata, "distributions", lambda **_: iter(()))
    assert cli.main(["doctor"]) == 2
    assert "; pip install elastic-doctor" in capsys.readouterr().err


def test_blocked_plugin_is_named_for_its_unknown_command_and_flag(installed, monkeypatch, capsys):
    installed()
    monkeypatch.setenv("ELASTIC_DISABLE_PLUGINS", "commander")
    blocked = "blocked by ELASTIC_DISABLE_PLUGINS: plugin 'commander' of commander 1.0"
    assert cli.main(["forget", "job7"]) == 2
    assert blocked in capsys.readouterr().err
    assert cli.main(["run", "--team=red", "train.py"]) == 2
    assert blocked in capsys.readouterr().err


def test_missing_plugins_flag_names_the_distribution(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ELASTIC_DISABLE_PLUGINS", "elastic-notices")
    assert cli.main(["run", "--notices=aws", "train.py"]) == 2
    assert "--notices: unknown flag; pip install elastic-notices" in capsys.readouterr().err
    monkeypatch.setenv("ELASTIC_NOTICES", "aws")
    assert cli.main(["explain"]) == 0
    assert "ELASTIC_NOTICES: a plugin that is not loaded reads it" in capsys.readouterr().out
    assert cli.main(["status", "--notices=aws"]) == 2
    assert "--notices: unknown flag; see elastic status --help" in capsys.readouterr().err
    (tmp_path / "elastic.toml").write_text('notices = "aws"')
    assert cli.main(["run", f"--config={tmp_path / 'elastic.toml'}", "train.py"]) == 2
    assert "notices: unknown setting; pip install elastic-notices" in capsys.readouterr().err


def test_unknown_flag_of_a_plugin_that_failed_to_load_shows_the_failure(installed, capsys):
    installed(f"import an_absent_library\n{PLUGIN}")
    assert cli.main(["run", "--team=red", "train.py"]) == 2
    output = capsys.readouterr().err
    assert "--team: unknown flag" in output
    assert "an_absent_library" in output


def test_plugin_command_can_parse_its_own_arguments(installed, capsys):
    installed()
    assert cli.main(["parses", "--depth=5"]) == 5
    assert capsys.readouterr().out == "['--depth=5']\n"
    with pytest.raises(SystemExit, match="0"):
        cli.main(["parses", "--help"])
    assert "usage: elastic parses [-h] [--depth DEPTH]" in capsys.readouterr().out


def test_plugin_cannot_replace_a_builtin_command(installed, capsys):
    installed(PLUGIN.replace('"parses", "read words"', '"run", "replace run"'))
    assert cli.main(["plugins"]) == 0
    assert "the command name 'run' is reserved for elastic itself" in capsys.readouterr().out
    capsys.readouterr()
    assert cli.main(["forget", "job7"]) == 2
    assert "the command name 'run' is reserved" in capsys.readouterr().err, "the reason why the command is missing"


@pytest.mark.integration
def test_plugin_command_sets_the_exit_code(installed):
    folder = installed()
    command = [sys.executable, "-m", "elastic_core", "forget", "job7"]
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split(" ")[0]) == (7, "job7"), done.stderr


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ('"parses", "read words", parses, (), ("status",)', "the command name 'status' is reserved for elastic itself"),
        ('"-x", "read words", parses, None', "expected a command name of lower-case letters"),
        ('"x", "a", parses, (Option("config", str, "", "a file"),)', "the flag --config of the command 'x'"),
        ('"x", "a", parses, None, (), "rdzv_id"', "must be tuples, not strings"),
        ('"x", "a", parses, required={"rdzv_id": "an id"}', "requires settings that it does not accept"),
    ],
)
def test_invalid_plugin_command_is_reported(installed, other, message, capsys):
    installed(PLUGIN.replace('"parses", "read words", parses, None', other))
    assert cli.main(["plugins"]) == 0
    assert message in capsys.readouterr().out
