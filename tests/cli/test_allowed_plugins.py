"""`--plugins`, its variable and its key: unlisted plugins are not even imported."""

from __future__ import annotations

import json
import os
import sys

import pytest

from elastic_core import cli

pytestmark = pytest.mark.integration

PLUGIN = """
from elastic_core.plugin import Option, hookimpl

@hookimpl
def elastic_add_options():
    return [Option("team", str, "blue", "a test")]
"""


@pytest.fixture(autouse=True)
def acme(put_on_path):
    """An installed plugin that adds the flag `--team`."""
    entry_points = {
        "elastic": ["guest = acme_plugin"],
        "torchrun.handlers": ["zk = no_such_module:create"],
        "torchrun.logs_specs": ["places = no_such_module:Specs"],
    }
    put_on_path("acme", entry_points, {"acme_plugin": PLUGIN}, version="1.4")


@pytest.fixture(autouse=True)
def no_torch(tmp_path, monkeypatch):
    """The doctor's subprocess finds no torch, whose import would take seconds."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


def listed(*flags: str, capsys) -> dict:
    assert cli.main(["plugins", "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_all_plugins_are_loaded_without_the_list(script, capsys):
    script("")
    listing = listed(capsys=capsys)
    assert "guest" in [plugin["plugin"] for plugin in listing["plugins"]]
    assert (listing["allowed"], listing["allowed_but_not_installed"]) == (None, [])


@pytest.mark.parametrize("source", ["flag", "variable", "key"])
def test_unlisted_plugin_is_not_imported(source, script, tmp_path, monkeypatch, capsys):
    script("")
    names = "Elastic_C10D,ghost"
    if source == "variable":
        monkeypatch.setenv("ELASTIC_PLUGINS", names)
    if source == "key":
        (tmp_path / "elastic.toml").write_text(f"plugins = {names.split(',')}")
    listing = listed(*([f"--plugins={names}"] if source == "flag" else []), capsys=capsys)
    assert "acme_plugin" not in sys.modules
    assert {plugin["distribution"] for plugin in listing["plugins"]} == {"elastic-core", "elastic-c10d"}
    assert listing["torchrun_handlers"] == []
    blocked = {item["plugin"]: item["by"] for item in listing["blocked"]}
    assert (blocked["guest"], blocked["zk"]) == ("--plugins", "--plugins")
    assert (listing["allowed"], listing["allowed_but_not_installed"]) == (names.split(","), ["ghost"])


@pytest.mark.parametrize("command", ["explain", "doctor", "status", "drain", "serve"])
def test_every_command_obeys_the_list(command, script, capsys):
    script("")
    cli.main([command, "--plugins=elastic-core", "--rdzv-backend=c10d", "--help"])
    job = [] if command == "serve" else ["--rdzv-id=j"]
    cli.main([command, "--plugins=elastic-core", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1", *job])
    assert "acme_plugin" not in sys.modules
    if command != "drain":  # drain lacks its NODE operand
        output = capsys.readouterr()
        assert "blocked by --plugins: plugin 'c10d' of elastic-c10d" in output.out + output.err


def test_run_warns_about_an_uninstalled_name(script, capfd):
    assert cli.main(["run", "--plugins=elastic-c1Od,Acme", "--team=red", script("")]) == 0
    (line,) = (line for line in capfd.readouterr().err.splitlines() if " warning " in line)
    assert "plugin not installed: reason=" in line
    assert "--plugins: no installed distribution with plugins is named 'elastic-c1Od'" in line
    assert "did you mean 'elastic-c10d'?" in line


@pytest.mark.parametrize("flags", [("--nnodes=2:3", "--rdzv-id=j", "--rdzv-endpoint=h"), ("--peers", "0")])
def test_list_after_flags_of_a_plugins_command_is_obeyed(flags, script, capsys):
    assert cli.main(["doctor", *flags, "--plugins=elastic-c10d", script("")]) in (0, 2)
    assert "acme_plugin" not in sys.modules


def test_list_after_an_unknown_flag_is_obeyed(script, capsys):
    assert cli.main(["run", "--nnodez=2", "--plugins=elastic-c10d", script("")]) == 2
    assert "did you mean --nnodes?" in capsys.readouterr().err
    assert "acme_plugin" not in sys.modules


def test_list_must_precede_flags_of_plugins(script, capsys):
    path = script("")
    assert cli.main(["run", "--team", "red", "--plugins=acme", path]) == 2
    assert "elastic: --plugins: must precede all flags that plugins add" in capsys.readouterr().err
    assert cli.main(["run", "--plugins=acme", "--team", "red", path]) == 0
    assert cli.main(["run", path, "--plugins=other"]) == 0  # an argument of the script


def test_malformed_list_loads_no_plugin(script, capsys):
    script("")
    assert cli.main(["plugins", "--plugins=one two"]) == 2
    assert "elastic: --plugins: expected names of distributions, separated by commas" in capsys.readouterr().err
    assert "acme_plugin" not in sys.modules


def test_logs_specs_obey_the_list(script, tmp_path, capsys):
    path = script("")
    words = ["--logs-specs=places", f"--log-dir={tmp_path / 'logs'}", path]
    assert cli.main(["run", "--plugins=elastic-c10d", *words]) == 2
    assert "no_such_module" not in capsys.readouterr().err
    assert cli.main(["run", "--plugins=acme", *words]) == 2
    assert "no_such_module" in capsys.readouterr().err


def test_config_file_from_a_pipe_is_read_once(script, capsys):
    """For example with `--config <(...)` in a shell; a second read would find nothing."""
    reader, writer = os.pipe()
    os.write(writer, b"max_restarts = 7\nteam = 'red'\n")
    os.close(writer)
    try:
        assert cli.main(["explain", "--json", f"--config=/dev/fd/{reader}", script("")]) == 0
    finally:
        os.close(reader)
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["max_restarts"]["value"] == 7
    assert found["plugin_options"]["team"]["value"] == "red"
