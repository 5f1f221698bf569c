"""The pages name only exit codes that the code has."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from elastic_core.errors import ExitCode

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAMED = re.compile(r"\b(?:exit code|exits with) (\d+)")
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("*/*/README.md")])


def test_pages_name_only_existing_exit_codes():
    known = {*map(int, ExitCode), *(128 + number for number in signal.valid_signals())}
    named = [(page, int(code)) for page in PAGES for code in NAMED.findall(page.read_text())]
    assert [found for found in named if found[1] not in known] == []
