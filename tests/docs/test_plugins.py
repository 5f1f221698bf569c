"""The tutorial's plugin in docs/extend/plugins.md, installed as the page describes."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from blocks import block_of

PAGE = "docs/extend/plugins.md"


@pytest.mark.integration
def test_tutorial_plugin_logs_the_failed_worker(shell, tmp_path):
    pytest.importorskip("hatchling")
    folder, site = tmp_path / "elastic-pager", tmp_path / "site"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(block_of(PAGE, "[build-system]"))
    (folder / "elastic_pager.py").write_text(block_of(PAGE, 'log.info("pager called"'))
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, "--target", str(site), "."], cwd=folder, check=True, timeout=300)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    said = shell.run(block_of(PAGE, "--pager=alice"), code=1, PYTHONPATH=path)
    shown = block_of(PAGE, "pager called: plugin=pager").strip()
    assert re.sub(" +", " ", shown) in re.sub(" +", " ", said)


def test_tutorial_plugin_fulfills_its_contract(shell, tmp_path):
    (tmp_path / "elastic_pager.py").write_text(block_of(PAGE, 'log.info("pager called"'))
    (tmp_path / "test_pager.py").write_text(block_of(PAGE, "NotificationContract)"))
    assert "3 passed" in shell.run(f"'{sys.executable}' -m pytest -q -p no:cacheprovider test_pager.py")
