"""The page on commands lists every command, and every flag of its help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from blocks import all_blocks, blocks_on, free_port

from elastic_core.cli import main
from elastic_core.errors import ExitCode

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text()
SECTIONS = dict(re.findall(r"^## `elastic (\w+)`\n((?:(?!## ).*\n?)*)", PAGE, re.M))


def said(argv, capsys):
    main(argv)
    out, err = capsys.readouterr()
    return out + err


def flags_of(text):
    return re.findall(r"^\| `(--[\w-]+)", text, re.M)


def test_page_lists_exactly_the_commands(capsys):
    (known,) = re.findall(r"expected a command \((.*?)\)", said(["nonsense"], capsys))
    assert set(SECTIONS) | {"run"} == set(known.split(", "))
    assert set(re.findall(r"^  (\w+)  +\w", said(["--help"], capsys), re.M)) == set(known.split(", "))


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_page_lists_exactly_the_flags_of_the_help(capsys, name):
    text = said([name, "--help"], capsys)
    assert flags_of(SECTIONS[name]) == re.findall(r"^  (--[\w-]+)", text, re.M)
    codes = re.findall(r"^  (\d+)  ", text, re.M)
    assert re.findall(r"^\| (\d+) \|", SECTIONS[name], re.M) == codes
    assert {*map(int, codes)} <= set(ExitCode)
    (example,) = re.findall(r"^example:\n  (.+)", text, re.M)
    assert f"```sh\n{example}\n```" in SECTIONS[name]
    usage, _, about = text.removeprefix("usage: ").partition("\n\nflags:")[0].partition("\n\n")
    assert usage in SECTIONS[name]
    assert about in SECTIONS[name]


EXAMPLES = [text.strip() for text in blocks_on("docs/reference/commands.md", "sh")]
ON_A_PAGE = {block.text.strip() for block in all_blocks() if block.page == "docs/guides/several-nodes.md"}
"""Run with that page: a store that is served, a job there, a look at it, a node that is taken out."""


def test_examples_that_need_a_job_are_run_elsewhere():
    needing = [example for example in EXAMPLES if example.split()[1] in ("status", "drain", "stop", "serve")]
    assert len(needing) == 4
    assert set(needing) <= ON_A_PAGE
    assert len(EXAMPLES) == len(SECTIONS)


@pytest.mark.torch
@pytest.mark.parametrize("example", sorted(set(EXAMPLES) - ON_A_PAGE))
def test_example_works(example, shell):
    (shell.folder / "train.py").touch()
    assert shell.run(example.replace("node0:29400", f"127.0.0.1:{free_port()}"))
