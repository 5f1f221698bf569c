"""Every page can be found, and every public module has a page. What Sphinx says of them is for `tox run -e docs`."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import elastic_testing
import pytest
from blocks import Shell, block_of

import elastic_core.errors
import elastic_core.plugin
import elastic_core.rendezvous
from elastic_core.rendezvous.model import Cause

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
API = {page.stem: page.read_text() for page in (DOCS / "api").glob("*.md")}
PUBLIC = {
    *(
        "agent",
        "errors",
        "events",
        "health",
        "launch",
        "metrics",
        "multiprocessing",
        "plugin",
        "rendezvous",
        "watchdog",
    ),
}


def documented(text):
    return re.findall(r"^\.\. automodule:: (\S+)$", text, re.M)


def excluded(text):
    return {name for line in re.findall(r":exclude-members: (.+)", text) for name in line.split(", ")}


def test_the_entry_page_leads_to_every_page():
    links = set(re.findall(r"\]\(([\w/-]+\.md)\)", (DOCS / "index.md").read_text()))
    assert links == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}


def test_every_public_module_has_a_page():
    assert set(API) == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_page_is_about_its_module(name):
    first, *below = documented(API[name])
    assert first == f"elastic_core.{name}"
    assert all(other.startswith(f"{first}.") for other in below)
    assert import_module(f"elastic_core.{name}").__doc__


def test_errors_are_described_once():
    errors = {name for name in elastic_core.rendezvous.__all__ if hasattr(elastic_core.errors, name)}
    assert excluded(API["rendezvous"]) == errors


def test_what_authors_give_to_a_contract_is_described():
    """What a contract has from classes that are not published is on the page with it."""
    text = (DOCS / "api" / "plugins" / "elastic_testing.md").read_text()
    whole = re.findall(r"^\.\. autoclass:: elastic_testing\.(\w+)\n +:inherited-members:$", text, re.M)
    contracts = {name: thing for name, thing in vars(elastic_testing).items() if name.endswith("Contract")}
    assert len(contracts) == 8
    assert whole == [name for name, contract in contracts.items() if contract.__bases__ != (object,)]
    assert excluded(text) == set(whole)


@pytest.fixture
def shell(tmp_path):
    made = Shell(tmp_path)
    yield made
    made.close()


def test_the_contract_of_stores_on_the_page_is_kept(shell):
    """It is installed, as a plugin whose store is that of the core."""
    for name, text in {
        "my_package-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: my-package\nVersion: 1\n",
        "my_package-1.dist-info/entry_points.txt": "[elastic]\nmine = my_package.plugin\n",
        "my_package/__init__.py": "",
        "my_package/store.py": MY_STORE,
        "my_package/plugin.py": block_of("docs/plugins.md", "StoreContract)"),
    }.items():
        (shell.folder / name).parent.mkdir(exist_ok=True)
        (shell.folder / name).write_text(text)
    said = shell.run(
        f"'{sys.executable}' -m pytest -q -p no:cacheprovider my_package/plugin.py", PYTHONPATH=str(shell.folder)
    )
    assert re.search(r"\d{2} passed", said)
    assert "failed" not in said


MY_STORE = """
import functools
from datetime import timedelta

from elastic_core.builtin.memory_store import MemoryStore


def MyStore(url, timeout):
    assert timeout == 300
    return at(url)


@functools.cache
def at(url):
    return MemoryStore(timedelta(seconds=20))  # a fault is to show before the test is given up
"""


ONBOARDING = (DOCS / "onboarding.md").read_text().partition("## A first change")[2]


def test_what_the_first_change_names_is_there():
    named = set(re.findall(r"(?:docs|tests|plugins|elastic_core)/[\w/.-]*[\w/]", ONBOARDING))
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert len(named) > 10
    tox = (ROOT / "tox.ini").read_text()
    environments = set(re.findall(r"tox run -e (\w+)", ONBOARDING))
    assert [name for name in environments if f"[testenv:{name}]" not in tox] == []
    assert environments == {"unit", "py", "lint", "docs"}
    for path, names in re.findall(r"`([\w/]+\.py)`: (`\w+` and `\w+`)", ONBOARDING):
        module = import_module(path.removesuffix(".py").replace("/", "."))
        assert [name for name in re.findall(r"\w+", names.replace(" and ", " ")) if not hasattr(module, name)] == []


def test_what_is_to_be_changed_is_in_the_manifest():
    listed = (DOCS / "kubernetes.md").read_text().partition("## Change before you apply")[2].partition("\n## ")[0]
    manifest = (ROOT / "examples" / "kubernetes" / "job.yaml").read_text()
    named = set(re.findall(r"`([^`]+)`", listed)) - {"ReadWriteMany", "&"}
    assert [words for words in named if words not in manifest] == []
    assert len(named) > 10


def test_times_in_the_concepts_are_those_of_the_code():
    text = "\n".join(page.read_text() for page in (DOCS / "concepts").glob("*.md"))
    told = re.findall(r"`(\w+_timeout|keep_alive_interval)`(?:,| \()\s*([\d.]+) s\b", text)
    assert {name for name, _ in told} >= {"join_timeout", "last_call_timeout", "close_timeout", "keep_alive_interval"}
    defaults = {option.name: option.default for option in elastic_core.plugin.BACKEND_OPTIONS}
    assert [(name, value) for name, value in told if defaults[name] != float(value)] == []
    window = defaults["keep_alive_interval"] * defaults["keep_alive_max_attempt"]
    assert f"times `keep_alive_max_attempt` ({window:g} s)" in text
    assert f"no beat for {window:g} s" in text


def test_the_causes_of_the_concepts_are_those_of_the_code():
    rows = re.findall(r"^\| ([a-z ]+) \| .* \| (yes|no)", (DOCS / "concepts" / "rounds.md").read_text(), re.M)
    assert {cause for cause, _ in rows} == {cause.value for cause in Cause}
    assert [cause for cause, costs in rows if costs == "yes"] == [Cause.FAILURE.value]
