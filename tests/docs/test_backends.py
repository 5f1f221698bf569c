"""The backend in docs/extend/backends.md fulfils its contract."""

from __future__ import annotations

import re
import sys

import pytest
from blocks import block_of


@pytest.fixture
def shell(shell, tmp_path):
    (tmp_path / "board.py").write_text(block_of("docs/extend/backends.md", "class BoardBackend"))
    (tmp_path / "test_board.py").write_text(block_of("docs/extend/backends.md", "BackendContract)"))
    return shell


def test_example_fulfils_its_contract(shell):
    said = shell.run(f"'{sys.executable}' -m pytest -q -rs -p no:cacheprovider test_board.py")
    assert re.search(r"[4-9]\d passed, 3 skipped", said), said
