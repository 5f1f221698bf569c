from __future__ import annotations

import sys
import unicodedata

import pytest

from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.parsing import parse_boolean, type_options
from elastic_core.plugin import Option
from elastic_core.text import in_one_line, nearest, normalised, printable, truth

SPELLINGS = {
    **dict.fromkeys(["1", "true", "T", "Yes", "y", "ON", " on "], True),
    **dict.fromkeys(["0", "false", "F", "No", "n", "OFF"], False),
}


@pytest.mark.parametrize(("spelt", "value"), [*SPELLINGS.items(), (1, True), (True, True), (0, False), (False, False)])
def test_all_parsers_accept_the_same_booleans(spelt, value):
    assert truth(spelt) is value
    assert parse_boolean(spelt) is value
    assert type_options((Option("x", bool, None, "a test"),), {"x": spelt}, "o")[0] == {"x": value}
    assert RendezvousParameters("local", "", "job", 1, 1, x=spelt).get_as_bool("x") is value


@pytest.mark.parametrize("word", ["", "maybe", "2", None, "truee"])
def test_other_words_are_not_booleans(word):
    assert truth(word) is None


def test_similar_name_is_suggested():
    assert nearest("nnode", ["nnodes", "role"]) == "nnodes"
    assert nearest("etdc", ["c10d", "etcd", "local"]) == "etcd"
    assert nearest("ETCD", ["c10d", "etcd"]) == "etcd"
    assert nearest("etcd", ["c10d", "ETCD"]) == "ETCD"


def test_prefix_of_a_name_matches():
    assert nearest("nproc", ["nproc_per_node"]) == "nproc_per_node"


def test_unrelated_name_gets_no_suggestion():
    assert nearest("zookeeper", ["c10d", "etcd"]) is None
    assert nearest("PORT", ["HEALTH_PORT"], 0.8) is None


@pytest.mark.parametrize("spelling", ["elastic-etcd", "Elastic_Etcd", "elastic.etcd", " elastic--etcd "])
def test_names_are_normalized_like_package_indexes(spelling):
    assert normalised(spelling) == "elastic-etcd"


VISIBLE = {0x600, 0x601, 0x602, 0x603, 0x604, 0x605, 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Visible signs of Arabic, Syriac and Kaithi that Unicode classifies as format characters."""


def test_all_control_characters_are_escaped():
    steering = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) not in steering or code in VISIBLE or 0x13430 <= code <= 0x1343F:
            continue
        text = f"a{character}b"
        assert printable(text) == (text if character in "\t\n" else f"a{ascii(character)[1:-1]}b")


@pytest.mark.parametrize(
    "text",
    [
        "第\u4e00\u3000\u5931敗: 日本語のエラー",  # with an ideographic space
        "葛\U000e0100飾区",
        "naïve café, cafe\u0301 \xa0 5\u202f000",
        "🔥 👩\u200d💻 👍🏽 ❤\ufe0f\u200d🔥 🏳\ufe0f\u200d🌈",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, with a joiner that keeps letters apart
        "עברית العربية",
        "\u05e9\u05c1\u05bc\u05b8\u05bd\u05a3",  # Hebrew, with five marks
        "1\ufe0f\u20e3 \u2764\ufe0f \u1820\u180b",  # a keycap, a heart, a Mongolian variant
        "a" + "\u0301" * 8,
        "a\n\tb\n",
        "C:\\x1b",
        "",
    ],
)
def test_readable_text_is_kept(text):
    assert printable(text) == text


def test_terminal_controls_are_escaped():
    assert printable("\x1b[31mred\x1b[0m \x9b2J \x07 a\rb\r\nc") == "\\x1b[31mred\\x1b[0m \\x9b2J \\x07 a\\rb\nc"
    assert printable("node\u202egpj\u200b \ud800 \U000e0041") == "node\\u202egpj\\u200b \\ud800 \\U000e0041"
    assert printable("node\u200d1") == "node\\u200d1"


def test_zero_width_characters_are_escaped():
    for character in "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\ufe00\ufe0f\U000e0100\U000e01ef\u180b\u180f":
        assert printable(f"node{character}s") == f"node{ascii(character)[1:-1]}s"
        assert printable(character) == ascii(character)[1:-1]
    assert printable("\u2764\ufe0f\ufe0f\ufe01") == "\u2764\ufe0f\\ufe0f\\ufe01"


@pytest.mark.parametrize("marks", ["\u0301", "\u20dd", "\u0591\u05b8", "\u0e49"])
def test_excess_combining_marks_are_escaped(marks):
    text = "a" + marks * 500 + "b"
    shown = printable(text)
    assert shown.startswith(text[:9] + "\\u")
    assert shown[9:].isascii()
    assert shown.count("\\u") == len(text) - 10
    assert printable("a\u0301" * 500) == "a\u0301" * 500
    assert printable("\u05e9" + "\u0301" * 9) == "\u05e9" + "\u0301" * 8 + "\\u0301"


def test_name_stays_on_one_line():
    assert in_one_line("node\nRoot cause: none\r\n\u2028x\x85") == r"node\nRoot cause: none\n\u2028x\x85"
