"""Every page can be found from the index. Sphinx checks the rest (`tox run -e docs`)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from blocks import block_of

from elastic_core.rendezvous.model import Cause

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_index_leads_to_every_page():
    links = set(re.findall(r"\]\(([\w/-]+\.md)\)", (DOCS / "index.md").read_text()))
    assert links == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}


def test_documented_store_fulfils_its_contract(shell):
    """Installs the page's contract as a plugin that registers the core's store."""
    for name, text in {
        "my_package-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: my-package\nVersion: 1\n",
        "my_package-1.dist-info/entry_points.txt": "[elastic]\nmine = my_package.plugin\n",
        "my_package/__init__.py": "",
        "my_package/store.py": MY_STORE,
        "my_package/plugin.py": block_of("docs/extend/plugins.md", "StoreContract)"),
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

from elastic_core.builtin import MemoryStore


def MyStore(url, timeout):
    assert timeout == 300
    return at(url)


@functools.cache
def at(url):
    return MemoryStore(timedelta(seconds=20))  # a fault is to show before the test is given up
"""


def test_documented_restart_causes_equal_the_code():
    rows = re.findall(r"^\| ([a-z ]+) \| .* \| (yes|no)", (DOCS / "concepts" / "how-it-works.md").read_text(), re.M)
    assert {cause for cause, _ in rows} == {cause.value for cause in Cause}
    assert [cause for cause, costs in rows if costs == "yes"] == [Cause.FAILURE.value]
