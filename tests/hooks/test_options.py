from __future__ import annotations

import pytest

from elastic_core.errors import Problem
from elastic_core.hooks.records import Option
from elastic_core.parsing import not_needed, type_options

JOIN = Option("join_timeout", float, 600.0, "how long to wait", "seconds")
RETRIES = Option("retries", int, 3, "attempts")
HOST = Option("is_host", bool, None, "whether this node hosts the store")
PROTOCOL = Option("protocol", str, "http", "http or https")
GRACE = Option("grace", float, 30.0, "how long to bear it", "seconds", least=0)
PACE = Option("pace", float, 1.0, "how fast", above=0, most=9.5)
PEERS = Option("peers", int, 2, "how many", least=2, most=8)
ALL = (JOIN, RETRIES, HOST, PROTOCOL)


def test_defaults_are_filled_in():
    typed, problems = type_options(ALL, {}, "--rdzv-conf")
    assert typed == {"join_timeout": 600.0, "retries": 3, "is_host": None, "protocol": "http"}
    assert problems == ()


def test_text_becomes_values_of_the_declared_types():
    raw = {"join_timeout": "30", "retries": "7", "is_host": "true", "protocol": "https"}
    typed, problems = type_options(ALL, raw, "--rdzv-conf")
    assert problems == ()
    assert typed == {"join_timeout": 30.0, "retries": 7, "is_host": True, "protocol": "https"}
    assert [type(value) for value in typed.values()] == [float, int, bool, str]


def test_typed_values_are_accepted():
    typed, problems = type_options(ALL, {"join_timeout": 30, "retries": 2, "protocol": 5, "is_host": None}, "o")
    assert (typed, problems) == ({"join_timeout": 30.0, "retries": 2, "is_host": None, "protocol": "5"}, ())


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        (HOST, "maybe", "expected true or false (also 1/0, yes/no, on/off), found 'maybe'"),
        (RETRIES, "many", "expected a whole number, found 'many'"),
        (RETRIES, "1.5", "expected a whole number, found '1.5'"),
        (RETRIES, True, "expected a whole number, found True"),
        (JOIN, "soon", "expected a number of seconds, found 'soon'"),
        (JOIN, "nan", "expected a number of seconds, found 'nan'"),
        (PROTOCOL, True, "expected a string, found True"),
        (GRACE, "-1", "expected a number of seconds >= 0, found '-1'"),
        (GRACE, "1e19", "expected at most 9,000,000,000 seconds, found '1e19'"),
        (PACE, 0, "expected a number > 0 and <= 9.5, found 0"),
        (PACE, 10, "expected a number > 0 and <= 9.5, found 10"),
        (PEERS, "1", "expected a whole number from 2 to 8, found '1'"),
        (PEERS, 9, "expected a whole number from 2 to 8, found 9"),
    ],
)
def test_value_of_wrong_type_is_a_problem(option, value, message):
    typed, problems = type_options((option,), {option.name: value}, "--rdzv-conf")
    assert problems == (Problem(f"--rdzv-conf: {option.name}", message),)
    assert typed == {}


def test_unknown_option_names_the_nearest_or_all():
    near = type_options(ALL, {"join_timeuot": "3"}, "elastic.toml")[1]
    far = type_options(ALL, {"colour": "red"}, "elastic.toml")[1]
    none = type_options((), {"colour": "red"}, "elastic.toml")[1]
    assert near == (Problem("elastic.toml: join_timeuot", "unknown option; did you mean 'join_timeout'?"),)
    assert far[0].message == "unknown option; known options: is_host, join_timeout, protocol, retries"
    assert none[0].message == "unknown option; known options: none"


def test_all_problems_are_reported_and_good_values_kept():
    typed, problems = type_options(ALL, {"retries": "x", "colour": "red", "is_host": "?", "protocol": "https"}, "o")
    assert len(problems) == 3
    assert typed == {"join_timeout": 600.0, "protocol": "https"}


def test_dashes_and_underscores_name_the_same_option():
    assert type_options((JOIN,), {"join-timeout": "3"}, "o") == ({"join_timeout": 3.0}, ())
    _, problems = type_options((JOIN,), {"join-timeout": "3", "join_timeout": "4"}, "o")
    assert "given twice" in problems[0].message


def test_record_without_declared_options_gets_raw_values():
    assert type_options(None, {"x": "1"}, "o") == ({"x": "1"}, ())


def test_unneeded_torchrun_options_are_ignored_except_tls():
    raw = {"join_timeout": "3", "Store-Type": "tcp", "colour": "red", "ssl_cert": "c.pem"}
    assert not_needed(ALL, raw) == ["Store-Type"]
    assert not_needed((), raw) == ["join_timeout", "Store-Type"]
    assert not_needed(None, raw) == []


def test_errors_never_show_secret_values():
    secrets = (Option("token", str, None, "the token", secret=True), Option("pin", int, None, "the pin", secret=True))
    _, problems = type_options(secrets, {"token": True, "pin": "12e4"}, "--health-conf")
    assert [problem.message for problem in problems] == [
        "expected a string, found ***",
        "expected a whole number, found ***",
    ]
