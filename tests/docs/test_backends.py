"""The backend of docs/backends.md: its contract, and what the contract finds when one of its hard parts is wrong."""

from __future__ import annotations

import re
import sys

import pytest
from blocks import Shell, block_of


@pytest.fixture
def shell(tmp_path):
    made = Shell(tmp_path)
    (tmp_path / "board.py").write_text(block_of("docs/backends.md", "class BoardBackend"))
    (tmp_path / "test_board.py").write_text(block_of("docs/backends.md", "BackendContract)"))
    yield made
    made.close()


def contract(shell, *options, code=0):
    return shell.run(
        f"'{sys.executable}' -m pytest -q -rs -p no:cacheprovider {' '.join(options)} test_board.py", code=code
    )


def test_it_keeps_its_contract(shell):
    said = contract(shell)
    assert re.search(r"[4-9]\d passed, 3 skipped", said), said


FAULTS = [
    ("return self.wait(lambda: self.board.rosters >= self.seen + more, timeout)",
     "seen = self.board.rosters; return self.wait(lambda: self.board.rosters > seen, timeout)", "since_the_last_look"),
    ("self.closed = True\n            self.changed.notify_all()", "self.closed = True", "close_lets"),
    ("sorted((place, key, entry, beats)", "sorted((key, key, entry, beats)", "in_the_order"),
    ("raise EntryDroppedError(f", "return print(f", "comes_back_empty"),
]  # fmt: skip
MORE_FAULTS = [
    ("self.board.entries.get(key) or (next", "(next", "in_the_order"),
    ("next(self.board.numbers)\n            self.changed", "1 + (found[1] if found else 0)\n            self.changed",
     "comes_back_empty"),
    ("if self.closed or not self.board", "if not self.board", "close_lets"),
    ("self.ask()\n            found = self.board.state", "found = self.board.state", "gone_is_told"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("right", "wrong", "test"), [*FAULTS, *(pytest.param(*fault, marks=pytest.mark.nightly) for fault in MORE_FAULTS)]
)
def test_the_contract_finds(shell, right, wrong, test):
    module = shell.folder / "board.py"
    assert module.read_text().count(right) == 1
    module.write_text(module.read_text().replace(right, wrong))
    tests = shell.folder / "test_board.py"
    tests.write_text(tests.read_text().replace("(BackendContract):\n", "(BackendContract):\n    lease = at_once = 3\n"))
    assert re.search(r"\d failed", contract(shell, "-x", "-k", f"'{test}'", code=1))
