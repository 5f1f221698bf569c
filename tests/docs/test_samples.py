"""Samples of log lines and reports on the pages match the actual output."""

from __future__ import annotations

import io
import json
import re
import shlex

import pytest
from blocks import block_of, free_port

from elastic_core import log

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
LINE = re.compile(rf"({TIME}) (\w+) +([a-z ]+): (.*)")
LOGS = [("docs/start/two-machines.md", "run started: "), ("docs/guides/debugging-a-hang.md", "worker hangs: ")]


@pytest.fixture
def written():
    """Return a function that logs an event and returns the line without its timestamp."""
    stream = io.StringIO()
    log.configure(level="debug", stream=stream)

    def written(level, event, fields):
        getattr(log.get_logger(), level)(event, **fields)
        return stream.getvalue().splitlines()[-1].partition(" ")[2]

    yield written
    log.configure(level="warning")


def fields_of(text):
    """Parse fields such as `a=1 b="two words"` into the values that were logged."""
    pairs = [word.partition("=") for word in shlex.split(text)]
    return {name: json.loads(value) if re.match(r"[\d\[]+[\d\]]*$", value) else value for name, _, value in pairs}


@pytest.mark.parametrize(("page", "words"), LOGS)
def test_documented_log_lines_match_the_log(page, words, written):
    shown = re.findall(rf"^.*\b(?:info|warning|error) {{4,}}[a-z].*$|^{TIME}.*$", block_of(page, words), re.M)
    assert shown
    for line in shown:
        assert LINE.fullmatch(line), line
        _, level, event, pairs = LINE.fullmatch(line).groups()
        assert written(level, event, fields_of(pairs)) == line.partition(" ")[2]
    assert sorted(shown) == shown  # timestamps never decrease


@pytest.mark.torch
def test_first_log_lines_match_the_page(shell):
    """Compares all lines except those about waiting, which would take seconds."""
    pytest.importorskip("elastic_c10d")
    (shell.folder / "train.py").write_text("")
    job = f"--nnodes=1:2 --rdzv-endpoint=127.0.0.1:{free_port()} --rdzv-id=job7 --rdzv-conf=last_call_timeout=0.1"
    said = shell.run(f"elastic run {job} train.py")
    there = {found[3]: list(fields_of(found[4])) for found in LINE.finditer(said)}
    shown = {found[3]: list(fields_of(found[4])) for found in LINE.finditer(block_of(*LOGS[0]))}
    assert shown.pop("still waiting")
    assert shown == {event: there[event] for event in shown}
    assert 'reason="the last call is over"' in said


FAILS = """\
import os
if os.environ["RANK"] == "0":
    raise SystemExit
raise ValueError("no samples")
"""


def test_failure_report_matches_the_readme(shell):
    (shell.folder / "train.py").write_text(FAILS)
    said = shell.run("elastic run --nproc-per-node=2 --max-restarts=3 --rdzv-id=digits train.py", code=1)
    report = "elastic: job " + said.partition("elastic: job ")[2]
    differs = r"pid \d+|on \S+:|File \".*train.py\""
    assert re.sub(differs, "", report).startswith(re.sub(differs, "", block_of("README.md", "Root cause (")))
