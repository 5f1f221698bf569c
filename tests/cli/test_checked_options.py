"""A plugin's own check of the options that it adds."""

from __future__ import annotations

import json

import pytest

from elastic_core import cli

PLUGIN = """
from elastic_core.plugin import CommandRecord, Option, hookimpl


def check(team):
    if not team.startswith("team-"):
        raise ValueError(f"expected a name such as team-blue, found {team!r}")


def check_key(key):
    raise ValueError(f"no key is named {key!r}; expected one, found {key!r}")


def check_even(number):
    if number % 2:
        raise ValueError(f"expected an even number, found {number!r}")


@hookimpl
def elastic_add_options():
    return [
        Option("team", str, "unset", "who pays", check=check),
        Option("team_key", str, None, "its key", secret=True, check=check_key),
        Option("pairs", int, None, "how many", least=0, check=check_even),
    ]


@hookimpl
def elastic_commands():
    coins = Option("coins", int, 2, "how many", check=check_even)
    return [CommandRecord("pay", "pay", lambda context, operands: None, (coins,))]
"""


BROKEN = """
from elastic_core.plugin import Option, hookimpl


@hookimpl
def elastic_add_options():
    return [Option("squad", str, None, "who pays", check=lambda name: {}[name])]
"""


@pytest.fixture(autouse=True)
def installed(put_on_path, tmp_path, monkeypatch):
    put_on_path("payer", {"elastic": ["payer = payer_plugin"]}, {"payer_plugin": PLUGIN})
    monkeypatch.chdir(tmp_path)


def set_by_flag(value, tmp_path, monkeypatch):
    return [f"--team={value}"], "--team"


def set_by_variable(value, tmp_path, monkeypatch):
    monkeypatch.setenv("ELASTIC_TEAM", value)
    return [], "ELASTIC_TEAM"


def set_in_file(value, tmp_path, monkeypatch):
    (tmp_path / "elastic.toml").write_text(f'team = "{value}"')
    return [], "elastic.toml: team"


@pytest.mark.parametrize("set_team", [set_by_flag, set_by_variable, set_in_file])
@pytest.mark.parametrize("command", ["run", "explain", "doctor"])
def test_rejected_value_is_reported_at_its_origin(command, set_team, tmp_path, monkeypatch, capsys):
    words, origin = set_team("blue", tmp_path, monkeypatch)
    assert cli.main([command, *words, "--pairs=3", "--nnodes=x", "--no-python", "true"]) == 2
    shown = capsys.readouterr()
    assert f"{origin}: expected a name such as team-blue, found 'blue'\n" in shown.err
    assert "--pairs: expected an even number, found 3\n" in shown.err
    assert "--nnodes: " in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("set_team", [set_by_flag, set_by_variable, set_in_file])
def test_accepted_value_and_unchecked_default_are_used(set_team, tmp_path, monkeypatch, capsys):
    words, origin = set_team("team-red", tmp_path, monkeypatch)
    assert cli.main(["explain", "--json", *words, "--pairs=4", "--no-python", "true"]) == 0
    settings = json.loads(capsys.readouterr().out)["plugin_options"]
    assert settings["team"]["value"] == "team-red"
    assert origin in settings["team"]["origin"]
    assert settings["pairs"]["value"] == 4


def test_rejected_secret_is_hidden(capsys):
    assert cli.main(["run", "--team-key=s3cret", "--no-python", "true"]) == 2
    shown = capsys.readouterr().err
    assert "--team-key: no key is named '" in shown
    assert "s3cret" not in shown


def test_check_that_fails_is_reported_as_the_plugins(capsys, put_on_path):
    put_on_path("other", {"elastic": ["other = other_plugin"]}, {"other_plugin": BROKEN})
    assert cli.main(["run", "--squad=x", "--no-python", "true"]) == 2
    assert "--squad: the plugin's check failed: KeyError: 'x', found 'x'" in capsys.readouterr().err


def test_option_of_a_command_is_checked(capsys):
    assert cli.main(["pay", "--coins=3"]) == 2
    assert "--coins: expected an even number, found 3" in capsys.readouterr().err
    assert cli.main(["pay", "--coins=4"]) == 0


@pytest.mark.parametrize("option", ['"paid", bool, False, "", check=check', '"paid", str, None, "", check="paid"'])
def test_unusable_check_disables_the_plugin(option, put_on_path, capsys):
    source = PLUGIN.replace('"pairs", int, None, "how many", least=0, check=check_even', option)
    put_on_path("other", {"elastic": ["other = other_plugin"]}, {"other_plugin": source})
    assert cli.main(["plugins"]) == 0
    assert "option 'paid': `check` must be a function, and a bool option cannot have one" in capsys.readouterr().out
