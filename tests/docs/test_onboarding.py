"""The page for newcomers to the code is true: its tree is the repository's, and its run is that of a real one."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tracing
from steps import is_call_of, names_in, told_in
from steps import of_page as steps

ROOT = Path(__file__).parents[2]
CORE = ROOT / "elastic_core"
PAGE = (ROOT / "docs" / "onboarding.md").read_text()
TREE = re.search(r"(?:^    .+\n)+", PAGE, re.M)[0]
FAIL = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("no samples")
time.sleep(60)
"""
DATA = {"local", "RoundPlan", "RunResult", "REPORT", "STOP", "JOIN", "START", "FAIL"}
"""Names of the traced run that are no functions, and no classes with functions of their own."""


def entries(text):
    """The paths of a tree. A line below a name, indented by two, is what its folder has; others go on with a text."""
    folder = ""
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        names = [name.rstrip("/") for name in re.split(r"  +", line.strip())[0].split(", ")]
        if indent == 4:
            folder = names[0] if len(names) == 1 else ""
            yield from names
        elif indent == 6:
            yield from (f"{folder}/{name}" for name in names)


NAMED = list(entries(TREE))


def tracked():
    """Every path of the checkout, folders included."""
    listed = subprocess.run(("git", "ls-files", "-co", "--exclude-standard"), cwd=ROOT, capture_output=True, text=True)
    paths = [Path(name) for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    return {str(part) for path in paths for part in (path, *path.parents)} - {"."}


def of_interest(path):
    """What a newcomer should find in the tree: every folder down to the second level, and every module of the core."""
    parts = Path(path).parts
    if parts[0] == "elastic_core" and len(parts) == 2:
        return (path.endswith(".py") and parts[1] != "__init__.py") or (ROOT / path).is_dir()
    return len(parts) <= 2 and (ROOT / path).is_dir() and path != ".ci"


def test_everything_in_the_tree_is_there():
    assert [name for name in NAMED if not (ROOT / name).exists()] == []
    assert len(NAMED) == len(set(NAMED))


@pytest.mark.integration
def test_everything_of_interest_is_in_the_tree():
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    interesting = {path for path in tracked() if of_interest(path)}
    assert interesting - set(NAMED) == set()
    assert len(interesting) > 60


def test_what_the_tree_says_of_a_file_names_files_that_there_are():
    for line in TREE.splitlines():
        _, _, about = line.strip().partition("  ")
        for name in re.findall(r"[\w/]+\.py", about):
            assert [path for path in ROOT.rglob(name) if ".tox" not in path.parts], name


@pytest.mark.parametrize("words", ["Seven files in order: ", "Seven more for several nodes: "])
def test_the_seven_files_are_there(words):
    files = re.findall(r"`([\w/.-]+)`", PAGE.split(words)[1].partition(". ")[0].partition(" of `")[0])
    assert len(files) == 7
    assert [
        name for name in files if not (CORE / name).exists() and not list(ROOT.glob(f"plugins/elastic-c10d/*/{name}"))
    ] == []


STEPS = steps(PAGE, "One run, traced")
COMMAND = re.search(r"## One run, traced\n\n`elastic (.+?)`", PAGE)[1]


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """The run: its calls, the events of its log, its exit code."""
    folder = tmp_path_factory.mktemp("traced")
    (folder / "fail.py").write_text(FAIL)
    words = shlex.split(COMMAND)
    command = [sys.executable, tracing.__file__, "calls", words[0], "--log-format=json", *words[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180)
    log = [json.loads(line)["event"] for line in done.stderr.splitlines() if line.startswith('{"event"')]
    return (folder / "calls").read_text().splitlines(), log, done


needs_names = pytest.mark.skipif(sys.version_info < (3, 11), reason="calls have no qualified names there")


@needs_names
@pytest.mark.parametrize("number", range(len(STEPS)))
def test_what_a_step_names_is_called(traced, number):
    calls, _, _ = traced
    assert [name for name in names_in(STEPS[number], DATA) if not any(is_call_of(name, call) for call in calls)] == []
    assert names_in(STEPS[number], DATA)


@needs_names
def test_the_steps_are_in_order(traced):
    calls, _, _ = traced
    firsts = [
        [next(n for n, call in enumerate(calls) if is_call_of(name, call)) for name in names_in(s, DATA)] for s in STEPS
    ]
    assert [max(first) for first in firsts] == sorted(max(first) for first in firsts)


@needs_names
def test_the_files_between_an_end_and_the_next_start_are_named(traced):
    """All of the agent's room, and the one by which it enters that of the workers."""
    calls, _, _ = traced
    end = next(n for n, call in enumerate(calls) if call.endswith("ProcessAgent._monitor_workers"))
    starts = [n for n, call in enumerate(calls) if call.endswith("LocalWorkers.start")]
    passed = {call.partition(":")[0] for call in calls[end : starts[1]]}
    named = re.findall(r"`((?:agent|workers)/\w+\.py)`", PAGE.split("Ten files say")[1].partition("\n\n")[0])
    assert len(named) == 10
    assert {name for name in named if name.startswith("agent/")} == {
        path.removeprefix("elastic_core/") for path in passed if path.startswith("elastic_core/agent/")
    }
    assert "elastic_core/workers/group.py" in passed


@needs_names
def test_the_log_says_what_the_steps_say(traced):
    _, log, done = traced
    told = [told_in(step) for step in STEPS]
    log = [event for event in log if event != "still waiting"]  # said where a machine is slow
    again = [*told[2], *told[3], *told[4]]  # step 6 goes back to 3, and the second time on to 7
    assert [*told[0], *told[1], *again, told[5][0], *again, *told[5][1:], *told[6]] == log
    assert done.returncode == int(re.search(r"exits with (\d+)", STEPS[-1])[1])


def test_the_data_of_the_steps_are_in_the_code():
    sources = "\n".join(path.read_text() for path in CORE.rglob("*.py"))
    named = {name for step in STEPS for name in re.findall(r"`([\w.]+)`", step)}
    assert named >= DATA
    for name in DATA - {"local"}:
        assert re.search(rf"^(class {name}\b|    {name} = )", sources, re.M), name


@pytest.mark.parametrize(
    ("name", "call", "expected"),
    [
        ("cli.run", "cli.py:run", True),
        ("cli.run", "cli.py:_run", False),
        ("hooks.manager", "hooks/manager.py:PluginManager.load", True),
        ("EventQueue.wait", "agent/event_queue.py:EventQueue.wait", True),
        ("EventQueue.wait", "agent/agent.py:SimpleElasticAgent._wait", False),
        ("output.py", "workers/round_output.py:RoundOutput.tail", False),
        ("output.py", "workers/output.py:OutputPump.start", True),
    ],
)
def test_calls_are_told_apart(name, call, expected):
    assert is_call_of(name, call) is expected
