"""The result file of a real run has exactly the keys and types in the reference."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "result-file.md").read_text()
OF_RUN, OF_FAILURE = PAGE.split("\nA failure:\n")
TYPES = {
    "integer": int,
    "number": float,
    "boolean": bool,
    "string": str,
    "object": dict,
    "null": type(None),
    "list": list,
    "list of strings": list,
}
FAIL = "import os; assert os.environ['RANK'] == '0', 'no samples'"


def table(text):
    """Return the type and the meaning of each key. A cell with several types has one for each key in its row."""
    told = {}
    for keys, types, meaning in re.findall(r"^\| (`.*?`) \| (.*?) \| (.*) \|$", text, re.M):
        keys = re.findall(r"`(\w+)`", keys)
        words = types.split(", ")
        told |= {key: (words[at if len(words) == len(keys) else 0], meaning) for at, key in enumerate(keys)}
    return told


def fits(value, words):
    """Return whether a value has one of the types that these words name."""
    return type(value) in [TYPES[word] for word in words.split(" or ")]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "fail.py").write_text(FAIL)
    command = (sys.executable, "-m", "elastic_core", "run", "--nproc-per-node=2", "--max-restarts=1")
    subprocess.run((*command, "--result-file=out.json", "fail.py"), cwd=folder, capture_output=True, timeout=180)
    return json.loads((folder / "out.json").read_text())


def test_run_fills_every_key(outcome):
    assert [key for key, value in outcome.items() if value in (None, [], "")] == ["stops"]  # no stop was requested


def test_page_lists_exactly_the_keys(outcome):
    assert list(table(OF_RUN)) == list(outcome)


def test_page_lists_exactly_the_keys_of_a_failure(outcome):
    assert outcome["first_failure"] in outcome["failures"]
    assert set(table(OF_FAILURE)) == set(outcome["first_failure"])


@pytest.mark.parametrize("key", ["error", "rounds", "workers", "restarts"])
def test_page_lists_exactly_the_nested_keys(outcome, key):
    _, meaning = table(OF_RUN)[key]
    within = outcome[key] if isinstance(outcome[key], dict) else outcome[key][0]
    assert set(re.findall(r"`([a-z_]+)`", meaning)) - {"failure", "hang", "membership"} == set(within)


def test_values_have_the_documented_types(outcome):
    told = [(key, outcome[key], words) for key, (words, _) in table(OF_RUN).items()]
    told += [(key, outcome["first_failure"][key], words) for key, (words, _) in table(OF_FAILURE).items()]
    assert [row for row in told if not fits(row[1], row[2])] == []
