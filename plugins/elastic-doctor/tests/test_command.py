"""The flags of `elastic doctor`, in addition to those of `elastic run`."""

from __future__ import annotations

import json
import os

import pytest
from elastic_doctor.options import DoctorOptions
from elastic_doctor.plugin import elastic_commands
from elastic_testing import CommandContract

from elastic_core import cli, config
from elastic_core.errors import ConfigurationError

DOCTOR = elastic_commands()[0]
OWN = tuple(config.own_specs(DOCTOR).values())


@pytest.fixture(autouse=True)
def no_torch(tmp_path, monkeypatch):
    """The doctor's subprocess finds no torch, whose import would take seconds."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.integration
class TestDoctor(CommandContract):
    @pytest.fixture
    def words(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))  # for the module torch
        return ["doctor", "--json", "--plugins=elastic-doctor"]


@pytest.fixture
def read(tmp_path):
    def read(*argv, environ=None):
        sources = config.Sources(argv, environ or {}, tmp_path)
        return config.read(sources, new_run_id=lambda: "doctor", require_script=False, own=OWN)

    return read


def test_doctor_flags_mix_with_run_flags(read):
    reading = read("--nnodes", "1:4", "--peers", "3", "--rdzv-id=j", "--rdzv-endpoint=h", "--expect_store", "train.py")
    assert DoctorOptions(**reading.own) == DoctorOptions(expect_store=True, peers=3)
    assert (str(reading.settings.nnodes), reading.script) == ("1:4", "train.py")
    assert "peers" not in reading.origins


def test_default_run_id_is_doctor(read):
    assert read().settings.rdzv_id == read().settings.rdzv_id == "doctor"
    assert DoctorOptions(**read().own) == DoctorOptions()


def test_doctor_flags_are_not_variables_and_not_run_flags(read, tmp_path):
    assert DoctorOptions(**read(environ={"ELASTIC_PEERS": "2"}).own).peers == 0
    with pytest.raises(ConfigurationError, match="--peers"):
        config.read(config.Sources(["--peers=2"], {}, tmp_path), require_script=False)


GREEDY = """
from elastic_core.plugin import Option, hookimpl

@hookimpl
def elastic_add_options():
    return [Option("peers", int, 9, "a test"), Option("team", str, "blue", "a test")]
"""


def test_plugin_option_named_like_a_doctor_flag_is_omitted(put_on_path, monkeypatch):
    put_on_path("greedy", {"elastic": ["greedy = greedy_plugin"]}, {"greedy_plugin": GREEDY})
    monkeypatch.setenv("ELASTIC_PEERS", "5")
    _, reading = cli.read_like_run(["--team=red"], DOCTOR, new_run_id=lambda: "doctor")
    assert DoctorOptions(**reading.own).peers == 0
    assert (reading.added["team"], "peers" in reading.added) == ("red", False)


def test_all_problems_are_reported_together(read):
    with pytest.raises(ConfigurationError) as refused:
        read("--peers=-1", "--timeout=0", "--nnodes=x")
    assert {problem.origin for problem in refused.value.problems} == {"--peers", "--timeout", "--nnodes"}


def test_help_lists_every_doctor_flag(capsys):
    assert cli.main(["doctor", "--help"]) == 0
    output = capsys.readouterr().out
    assert all(spec.flag in output for spec in OWN)


@pytest.mark.integration
def test_plugin_allowlist_does_not_block_the_doctor(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["doctor", "--json", "--plugins=elastic-c10d"]) == 0
    checks = [finding["check"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert {"python", "kernel", "process-limit", "shared-memory", "torch", "file-limit"} <= set(checks)


@pytest.mark.integration
@pytest.mark.parametrize(
    "words",
    [
        ["--notices=http"],  # requires a URL
        ["--health=http", "--health-port=0", "--health-conf=token_file=/no/such/file"],
        ["--worker-starter=spawn"],  # runs only functions
        ["--rdzv-endpoint=127.0.0.1:1", "--rdzv-id=job", "--rdzv-conf=read_timeout=abc"],
        ["--rdzv-endpoint=127.0.0.1:1", "--rdzv-id=job"],
    ],
)
def test_doctor_reports_what_a_run_would_refuse(capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    if words[-1] == "--rdzv-id=job":
        monkeypatch.setenv("ELASTIC_RDZV_SECRET_FILE", "/no/such/file")
    assert cli.main(["run", *words, "--no-python", "true"]) == 2
    (refused, *_) = reversed(capsys.readouterr().err.splitlines())
    assert cli.main(["doctor", "--json", *words, "--no-python", "true"]) == 2
    faults = [item["message"] for item in json.loads(capsys.readouterr().out)["findings"] if item["level"] == "fault"]
    assert [f"elastic: {fault}" for fault in faults] == [refused]
