"""Every public name of every plugin is on its page. What Sphinx says of them is for `tox run -e docs`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import elastic_core.rendezvous
import elastic_core.watchdog

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "api" / "plugins"
PACKAGES = {path.parent.name: path for path in ROOT.glob("plugins/*/elastic_*/__init__.py")}


def exported(package):
    """Its `__all__`; read, since not every plugin can be imported everywhere."""
    for node in ast.parse(PACKAGES[package].read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name("__all__")], value=value):
                return set(ast.literal_eval(value))
    return set()


def text_of(package):
    return (PAGES / f"{package}.md").read_text()


WITH_NAMES = sorted(package for package in PACKAGES if exported(package))


def test_every_plugin_with_public_names_has_a_page_and_no_other():
    assert {page.stem for page in PAGES.glob("*.md")} == set(WITH_NAMES)


@pytest.mark.parametrize("package", WITH_NAMES)
def test_every_public_name_is_on_the_page(package):
    text = text_of(package)
    assert f".. automodule:: {package}\n" in text
    named = set(re.findall(rf"^\.\. auto(?:class|function):: {package}\.(\w+)$", text, re.M))
    left_out = {name for line in re.findall(r":exclude-members: (.+)", text) for name in line.split(", ")}
    elsewhere = left_out - named
    assert named <= left_out
    assert left_out <= exported(package)
    described = {*dir(elastic_core.watchdog), *dir(elastic_core.rendezvous)}
    assert elsewhere <= described
    assert all(f"`{name}`" in text for name in elsewhere)
