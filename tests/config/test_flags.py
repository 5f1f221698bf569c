from pathlib import Path

import pytest

from elastic_core.config import RESERVED, SPECS, NodeRange, Sources, Std, specs_of_options
from elastic_core.config.spec import Spec
from elastic_core.hooks.records import Option
from elastic_core.parsing import parse_boolean


@pytest.mark.parametrize("line", ["--rdzv-id 7", "--rdzv_id 7", "--rdzv-id=7", "--rdzv_id=7"])
def test_flag_accepts_both_spellings_and_equals_sign(config_reader, line):
    reading = config_reader.read(f"{line} train.py")
    assert reading.settings.rdzv_id == "7"
    assert reading.origins["rdzv_id"] == "--rdzv-id"


@pytest.mark.parametrize("line", ["-r 3", "-r3", "-r=3", "--redirects 3"])
def test_short_flag_accepts_all_forms(config_reader, line):
    assert config_reader.read(f"{line} train.py").settings.redirects.for_rank(12) == Std.ALL


def test_arguments_after_the_script_belong_to_it(config_reader):
    reading = config_reader.read("--nnodes 1 train.py --nnodes 9 -m -- --help")
    assert reading.script == "train.py"
    assert reading.script_args == ("--nnodes", "9", "-m", "--", "--help")
    assert reading.settings.nnodes == NodeRange(1, 1)


def test_two_dashes_end_the_flags(config_reader):
    reading = config_reader.read("--max-restarts 2 -- train.py --x")
    assert (reading.script, reading.script_args) == ("train.py", ("--x",))


def test_script_after_two_dashes_may_look_like_a_flag(config_reader):
    config_reader.write("", "--odd.py")
    assert config_reader.read("-- --odd.py").script == "--odd.py"


def test_switches_take_no_value_but_can_be_turned_off(config_reader):
    assert config_reader.read("--virtual-local-rank train.py").settings.virtual_local_rank is True
    off = config_reader.read("--standalone=false train.py", {"PET_STANDALONE": "1"})
    assert off.settings.standalone is False


def test_repeated_options_merge_but_other_flags_are_replaced(config_reader):
    reading = config_reader.read("--rdzv-conf a=1,b=2 --rdzv_conf b=3 --role x --role y train.py")
    assert reading.settings.rdzv_conf == {"a": "1", "b": "3"}
    assert reading.settings.role == "y"


def test_all_bad_flags_are_reported_together(config_reader):
    problems = config_reader.problems("--nnode 2 --max-restarts=-1 --tee 9 --start-method thread --module train")
    assert set(problems) == {"--nnode", "--max-restarts", "--tee", "--start-method"}
    assert "did you mean --nnodes?" in problems["--nnode"]


def test_unrecognizable_flag_gets_general_advice(config_reader):
    problems = config_reader.problems("--zzzzqqq train.py")
    assert "flags of the script go after the script" in problems["--zzzzqqq"]


@pytest.mark.parametrize("line", ["--nnodes", "--nnodes --role x train.py", "--nnodes -m train"])
def test_missing_value_is_reported(config_reader, line):
    assert "requires a value; write --nnodes=N|MIN:MAX" in config_reader.problems(line)["--nnodes"]


@pytest.mark.parametrize("line", ["-nnodes 1 train.py", "-mfoo train.py", "-x train.py"])
def test_single_dashes_before_words_are_unknown_flags(config_reader, line):
    assert "unknown" in config_reader.problems(line)[line.split()[0]]


def line_of(*words, options=()):
    return Sources(words, {}, Path("/")).line({**SPECS, **specs_of_options(options)})


def test_help_flag_is_recognized_only_before_the_script():
    assert line_of("--nnodes", "2", "--help").help
    assert line_of("-h").help
    assert not line_of("train.py", "--help").help
    assert not line_of("--rdzv-id=-h", "train.py").help


def test_help_flag_is_accepted_by_read(config_reader):
    assert config_reader.read("--help", require_script=False).script is None


def test_plugin_options_are_typed_flags(config_reader):
    options = (Option("drain-after", float, 5.0, "when", "seconds"), Option("chatty", bool, False, "talk"))
    reading = config_reader.read("--drain_after=2 --chatty train.py", added_options=options)
    assert reading.added == {"drain-after": 2.0, "chatty": True}
    assert reading.origins["drain-after"] == "--drain-after"
    assert line_of("--drain-after", "3", "-h", options=options).help


@pytest.mark.parametrize("name", ["nnodes", "max_restarts", "backend", "help", "json", "disable_plugins"])
def test_reserved_names_are_listed(name):
    assert name in RESERVED


@pytest.mark.parametrize(
    ("line", "found", "words"),
    [
        ("--json --nnodes 1 train.py --json", True, "train.py --json"),
        ("--nnodes 1 -m --json train", True, "train"),
        ("train.py --json", False, "train.py --json"),
        ("-- --json", False, "--json"),
        ("--json", True, ""),
    ],
)
def test_command_flag_is_read_only_before_the_script(config_reader, line, found, words):
    json = Spec("json", parse_boolean, False, "own", "as JSON", flag_only=True)
    reading = config_reader.read(line, own=(json,), require_script=False)
    assert reading.own == {"json": found}
    assert [reading.script, *reading.script_args] == (words.split() or [None])
