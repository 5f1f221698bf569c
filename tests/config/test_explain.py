import json
import subprocess
import sys

import pytest

from elastic_core.config import SPECS, settings_from
from elastic_core.config.explain import as_dict, as_text, as_word, help_text
from elastic_core.config.spec import GROUPS
from elastic_core.errors import ConfigurationError
from elastic_core.hooks.records import Option

OPTION = Option("drain-after", float, 5.0, "when to leave", "seconds")


def test_as_dict_is_versioned_json(config_reader):
    reading = config_reader.read("--tee 0:3,11:1 --local-ranks-filter 3,1 train.py --x", added_options=(OPTION,))
    document = as_dict(reading, (OPTION,))
    assert json.loads(json.dumps(document)) == document
    assert document["version"] == 2
    assert (document["script"], document["script_args"]) == ("train.py", ["--x"])
    assert list(document["settings"]) == list(SPECS)
    assert document["settings"]["tee"] == {"value": "0:3,11:1", "unit": "", "origin": "--tee"}
    assert document["settings"]["local_ranks_filter"]["value"] == [1, 3]
    assert document["settings"]["shutdown_timeout"] == {"value": 30.0, "unit": "seconds", "origin": "default"}
    assert document["settings"]["signals_to_handle"]["value"][0] == "SIGTERM"
    assert document["plugin_options"]["drain-after"] == {"value": 5.0, "unit": "seconds", "origin": "default"}


def test_unused_backend_options_are_listed(config_reader):
    reading = config_reader.read("--rdzv-conf join_timeout=9,rank=0 train.py")
    shown = as_dict(reading, (), (), ["rank"])["settings"]["rdzv_conf"]
    assert shown == {
        "value": {"join_timeout": "9", "rank": "0"},
        "unit": "",
        "origin": "--rdzv-conf",
        "not_used": ["rank"],
    }
    assert "not_used" not in as_dict(reading, ())["settings"]["rdzv_conf"]
    assert "--rdzv-conf; not used: rank\n" in as_text(as_dict(reading, (), (), ["rank"]))


def test_as_text_has_a_line_per_setting(config_reader):
    path = config_reader.write("rdzv_conf = {join_timeout = 9}")
    text = as_text(as_dict(config_reader.read(added_options=(OPTION,)), (OPTION,)))
    lines = {line.split()[0]: line for line in text.splitlines()[3:]}
    assert f"config file: {path}" in text
    assert set(lines) == {*SPECS, "drain-after"}
    assert lines["rdzv_conf"].split()[1:] == ["join_timeout=9", "elastic.toml:", "rdzv_conf"]
    assert "30 seconds" in lines["shutdown_timeout"]
    assert lines["rdzv_id"].endswith("generated for a single node")


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.default not in (None, "")])
def test_every_default_passes_its_own_parser(name):
    spec = SPECS[name]
    assert spec.parse(spec.default) == spec.default
    word = as_word(spec.default)
    if word != "empty":
        assert spec.parse(word) == spec.default


def test_help_has_flag_default_and_variable_of_every_setting():
    text = help_text((OPTION,))
    flat = " ".join(text.split())
    for spec in SPECS.values():
        assert spec.group in GROUPS
        assert f" {spec.flag}" in text
        assert all(variable in flat for variable in spec.variables())
    assert "when to leave (default: 5 seconds; ELASTIC_DRAIN_AFTER)" in flat
    assert max(map(len, text.splitlines())) <= 100
    assert [line[:-1] for line in text.splitlines() if line[:-1] in GROUPS] == list(GROUPS)


def test_settings_are_frozen():
    with pytest.raises(AttributeError):
        settings_from({}).role = "x"


@pytest.mark.integration
def test_reading_flags_imports_no_heavy_module(config_reader):
    code = (
        "import sys, pathlib\n"
        "from elastic_core.config import Sources, read\n"
        "read(Sources(sys.argv[1:], {}, pathlib.Path.cwd()), require_script=False)\n"
        "heavy = {'torch', 'structlog', 'pluggy', 'importlib.metadata', 'tomllib', 'argparse', 'uuid', 'difflib'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
    )
    (config_reader.folder.parent / "elastic.toml").unlink()
    run = subprocess.run(
        [sys.executable, "-c", code, "--nnodes", "1", "train.py"],
        cwd=config_reader.folder,
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "[]"


def test_secrets_are_masked(config_reader):
    secret = Option("api-key", str, None, "a key", secret=True)
    config_reader.write("api_key = 'hidden'")
    health = "--health-port 1 --health-conf host=::,token=hidden"
    others = "--rdzv-conf user=me,password=hidden --watchdog-conf Pass-Word=hidden"
    reading = config_reader.read(f"{health} {others} train.py", added_options=(secret,))
    document = as_dict(reading, (secret,), {"pass_word"})
    for shown in (json.dumps(document), as_text(document)):
        assert "hidden" not in shown
        assert shown.count("***") == 4
        assert "me" in shown
    assert reading.settings.health_conf == {"host": "::", "token": "hidden"}
    assert reading.added == {"api-key": "hidden"}


def test_unset_secret_is_shown_as_none(config_reader):
    secret = Option("api-key", str, None, "a key", secret=True)
    document = as_dict(config_reader.read("train.py", added_options=(secret,)), (secret,))
    assert document["plugin_options"]["api-key"]["value"] is None


def test_errors_hide_secrets(config_reader):
    secret = Option("pin", int, None, "a pin", secret=True)
    with pytest.raises(ConfigurationError) as failed:
        config_reader.read("--pin hidden --health-conf token=half,hidden train.py", added_options=(secret,))
    assert [problem.origin for problem in failed.value.problems] == ["--health-conf", "--pin"]
    assert "hidden" not in str(failed.value)
    assert str(failed.value).count("found ***") == 2


def test_worker_starter_facts_are_shown_without_secrets(config_reader):
    reading = config_reader.read("train.py")
    facts = {"modules": 7, "pw": "s3cret", "left": {"numpy.random": "it draws random values"}}
    assert as_dict(reading, (), {"pw"}, starter=facts)["worker_starter"] == {**facts, "pw": "***"}
    shown = as_text(as_dict(reading, (), {"pw"}, starter=facts)).partition("worker starter:\n")[2]
    assert [line.strip() for line in shown.splitlines()] == [
        *("modules: 7", "pw: ***", "left: 1"),
        "numpy.random it draws random values",
    ]
