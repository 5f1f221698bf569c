"""The page on versions lists the versions that are required and tested."""

from __future__ import annotations

import re
from pathlib import Path

from elastic_core.rendezvous.codec import VERSION

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "project" / "support.md").read_text()
TOX = (ROOT / "tox.ini").read_text()


def row(name):
    """Return the cells after the first one."""
    (cells,) = re.findall(rf"^\| {name} \| (.*) \|$", PAGE, re.M)
    return [cell.strip() for cell in cells.split(" | ")]


def test_python_versions_are_those_of_tox():
    required, _, nightly = row("Python")
    assert f'requires-python = ">={required.split()[0]}"' in (ROOT / "pyproject.toml").read_text()
    others = re.findall(r"3\.(\d+)", nightly)
    assert f"[testenv:py3{{{','.join(others)}}}]" in TOX


def test_torch_versions_are_those_of_tox():
    required, tested, nightly = row("torch, .*?")
    assert f'"torch>={required.split()[0]}"' in (ROOT / "plugins/elastic-c10d/pyproject.toml").read_text()
    assert f"version = torch=={tested}\n" in TOX
    assert re.findall(r"torch2\d+: torch==(\S+)", TOX) == nightly.split(", ")


def test_format_version_is_that_of_the_code():
    assert f"expected a rendezvous state of version {VERSION}, found version {VERSION + 1}" in PAGE
