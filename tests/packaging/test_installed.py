"""The tests run against the installed wheel."""

from __future__ import annotations

import os
from importlib.metadata import distribution
from pathlib import Path

import pytest

import elastic_core

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox installs the wheel")
def test_tests_run_against_the_wheel():
    assert "site-packages" in Path(elastic_core.__file__).parts
    assert Path.cwd() != ROOT


def test_distribution_has_types_entry_points_and_few_needs():
    dist = distribution("elastic-core")
    assert {point.group for point in dist.entry_points} == {"console_scripts", "elastic"}
    assert Path(elastic_core.__file__).with_name("py.typed").exists()
    always = [line for line in dist.requires or [] if "extra ==" not in line]
    needed = {line.split(";")[0].split(">")[0].strip() for line in always}
    assert needed == {"pluggy", "psutil", "structlog", "tomli"}
    assert dist.metadata["Requires-Python"] == ">=3.10"
