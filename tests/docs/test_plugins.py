"""The tutorial's plugin in docs/extend/plugins.md, installed as the page describes."""

from __future__ import annotations

import re

import pytest
from blocks import Shell, block_of, install

PAGE = "docs/extend/plugins.md"


@pytest.mark.integration
def test_tutorial_plugin_logs_the_failed_worker(tmp_path):
    environ = install(PAGE, 'log.info("pager called"', tmp_path / "site")
    shell = Shell(tmp_path)
    try:
        said = shell.run(block_of(PAGE, "--pager=alice"), code=1, **environ)
    finally:
        shell.close()
    shown = block_of(PAGE, "pager called: plugin=pager").strip()
    assert re.sub(" +", " ", shown) in re.sub(" +", " ", said)
