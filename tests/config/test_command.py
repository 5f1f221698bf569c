"""Commands other than `run`: their own flags, and the flags of `run` that they accept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.config import RESERVED, Sources, command_specs, read_command
from elastic_core.config.explain import command_help
from elastic_core.errors import ConfigurationError
from elastic_core.hooks.records import CommandRecord, Option
from elastic_core.operate.commands import BUILT_IN

PAT = CommandRecord(
    "pat",
    "pat an animal",
    print,
    (Option("json", bool, False, "as JSON"), Option("timeout", float, 3.0, "to purr", "seconds", least=0)),
    settings={"rdzv_endpoint": "where the cats meet", "rdzv_conf": ""},
    operands=("ANIMAL",),
)
DEMANDING = replace(PAT, required={"rdzv_endpoint": "an endpoint is required"})


@pytest.fixture
def pat(config_reader):
    def pat(line, environ=None, command=PAT, **more):
        sources = Sources(line.split(), environ or {}, config_reader.folder, "elastic pat")
        return read_command(command, sources, **more)

    return pat


@pytest.fixture
def problems(pat):
    def problems(line, environ=None, **more):
        with pytest.raises(ConfigurationError) as caught:
            pat(line, environ, **more)
        return {problem.origin: problem.message for problem in caught.value.problems}

    return problems


@pytest.mark.parametrize(
    "line", ["cat --rdzv-endpoint h:1 --json", "--rdzv_endpoint=h:1 --json cat", "--json --rdzv-endpoint h:1 -- cat"]
)
def test_flags_and_operands_mix(pat, line):
    reading = pat(line)
    assert reading.words == ("cat",)
    assert (reading.settings.rdzv_endpoint, reading.own) == ("h:1", {"json": True, "timeout": 3.0})


def test_all_arguments_after_two_dashes_are_operands(pat):
    assert pat("-- --json").words == ("--json",)


def test_table_of_the_backend_applies_as_for_run(config_reader, pat):
    config_reader.write("[rendezvous]\nendpoint = 'h:1'\n[rendezvous.c10d]\nsecret_file = 's'")
    assert pat("cat").settings.rdzv_conf == {"secret_file": "s"}
    assert pat("cat --rdzv-conf a=1").settings.rdzv_conf == {"a": "1"}


def test_variables_and_config_file_apply_as_for_run(config_reader, pat):
    config_reader.write('endpoint = "file:1"\nnnodes = 3\n[rdzv_conf]\na = 1')
    assert pat("cat").settings.rdzv_endpoint == "file:1"
    assert pat("cat").settings.rdzv_conf == {"a": "1"}
    assert pat("cat", {"PET_RDZV_ENDPOINT": "pet:1", "ELASTIC_NNODES": "x"}).settings.rdzv_endpoint == "pet:1"
    assert pat("cat --rdzv-endpoint flag:1", {"PET_RDZV_ENDPOINT": "pet:1"}).settings.rdzv_endpoint == "flag:1"


def test_config_flag_names_the_config_file(config_reader, pat):
    path = config_reader.write('endpoint = "named:1"', "other.toml")
    assert pat(f"cat --config {path}").settings.rdzv_endpoint == "named:1"


def test_command_flags_have_neither_variables_nor_keys(config_reader, pat, problems):
    assert pat("cat", {"ELASTIC_TIMEOUT": "9", "ELASTIC_JSON": "1"}).own["timeout"] == 3.0
    config_reader.write("timeout = 9")
    assert "timeout" in str(problems("cat"))


def test_options_of_plugins_for_run_are_accepted(config_reader, pat):
    config_reader.write("volume = 3")
    assert pat("cat", {"ELASTIC_VOLUME": "4"}, added_options=[Option("volume", int, 1, "loudness")]).added == {
        "volume": 4
    }


def test_all_problems_are_reported_together(problems):
    found = problems("cat --timeout soon --jsn --rdzv-conf x", {"ELASTIC_RDZV_ENDPONT": "h"}, command=DEMANDING)
    assert set(found) == {"--timeout", "--jsn", "--rdzv-conf", "ELASTIC_RDZV_ENDPONT", "--rdzv-endpoint"}
    assert found["--jsn"] == "unknown flag; did you mean --json?"
    assert found["--rdzv-endpoint"] == "an endpoint is required"


def test_required_flag_without_a_value_is_reported_once(pat):
    with pytest.raises(ConfigurationError) as caught:
        pat("cat --rdzv-endpoint", command=DEMANDING)
    assert [problem.origin for problem in caught.value.problems] == ["--rdzv-endpoint"]


def test_unsupported_flag_of_run_is_unknown(problems):
    found = problems("cat --nproc-per-node 2")
    assert found["--nproc-per-node"] == "unknown flag; see elastic pat --help"


@pytest.mark.parametrize(("line", "found"), [("", "nothing"), ("cat dog", "cat dog")])
def test_wrong_number_of_operands_is_reported(problems, line, found):
    assert problems(line) == {"elastic pat": f"expected ANIMAL, found {found}; see elastic pat --help"}


@pytest.mark.parametrize(("line", "wants"), [("--help", True), ("cat -h", True), ("cat", False), ("-- -h", False)])
def test_help_flag_is_recognized(config_reader, line, wants):
    assert Sources(line.split(), {}, config_reader.folder, "elastic pat").line(command_specs(PAT)).help is wants


def test_help_names_every_flag_and_its_variables():
    text = command_help(DEMANDING)
    assert text.startswith("usage: elastic pat ANIMAL --rdzv-endpoint HOST[:PORT] [flags]\n\npat an animal\n")
    assert "--timeout S\n      to purr (default: 3 seconds)" in text
    assert "ELASTIC_RDZV_ENDPOINT" in text
    assert "--rdzv-endpoint HOST[:PORT]\n      where the cats meet (default: unset;" in text
    assert "--rdzv-conf K=V,..\n      options for the backend; may be repeated (default: empty;" in text
    assert "ELASTIC_TIMEOUT" not in text


def test_plugins_cannot_add_options_named_like_flags_of_commands():
    assert {option.name for record in BUILT_IN.values() for option in record.options or ()} <= RESERVED
