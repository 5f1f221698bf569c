"""The tables of defaults in the guide on operating jobs match the code."""

from __future__ import annotations

import re
from pathlib import Path

from elastic_core.config import SPECS
from elastic_core.plugin import BACKEND_OPTIONS

ROOT = Path(__file__).parents[2]
TUNING = (ROOT / "docs" / "guides" / "operating.md").read_text()
DEFAULTS = {option.name: option.default for option in BACKEND_OPTIONS}


def told_defaults():
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) s[;| ]", TUNING, re.M)
    return {name.lstrip("-").replace("-", "_"): float(value) for name, value in rows}


def test_documented_defaults_equal_the_code():
    told = told_defaults()
    theirs = {**DEFAULTS, **{name: spec.default for name, spec in SPECS.items()}}
    assert len(told) == 7
    assert told == {name: theirs[name] for name in told}


def test_documented_windows_are_computed_correctly():
    for values, lost, pause in re.findall(r"^\| (default|`[^`]+`) \| ([\d.]+) s \| up to ([\d.]+) s", TUNING, re.M):
        given = dict(re.findall(r"(\w+)=([\d.]+)", values))
        interval = float(given.get("keep_alive_interval", DEFAULTS["keep_alive_interval"]))
        attempts = float(given.get("keep_alive_max_attempt", DEFAULTS["keep_alive_max_attempt"]))
        assert (float(lost), float(pause)) == (interval * attempts, interval * (attempts - 1))
