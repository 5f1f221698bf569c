"""The reference agrees with the code."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from elastic_core.interfaces.workers import RoundPlan, WorkerRanks
from elastic_core.log import LEVELS
from elastic_core.rendezvous import model
from elastic_core.stop import STOP_FILE
from elastic_core.watchdog.beat import BEAT_FILE
from elastic_core.workers.process import EnvironmentPolicy

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EVENTS = re.findall(r"^\| `(.+)` \| .+ \|$", (DOCS / "reference" / "log-events.md").read_text(), re.MULTILINE)
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "SECURITY.md", "plugins/README.md"))])


def generator():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(generator().PAGES))
def test_generated_pages_are_current(name):
    assert (DOCS / "reference" / name).read_text() == generator().PAGES[name](), "run: python docs/generate.py"


def test_diagram_shows_every_change_of_the_state():
    functions = inspect.getmembers(model, inspect.isfunction)
    changes = {name for name, function in functions if function.__annotations__.get("return") == "State"}
    drawn = set(re.findall(r"\bchanges\.(\w+)\(", (DOCS / "round_states.py").read_text()))
    assert len(changes) > 5
    assert changes == drawn


def test_page_lists_exactly_the_workers_variables():
    plan = RoundPlan(1, "job", "node", "role", 0, 1, 2, 2, "::1", 1, False, 0, 0, (WorkerRanks(0, 0, 0),) * 2)
    ours = EnvironmentPolicy(True, faulthandler=True)(plan, plan.ranks[0], {}, "file")
    table = (DOCS / "reference" / "worker-environment.md").read_text()
    documented = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert documented == {*ours, BEAT_FILE, STOP_FILE, "ELASTIC_SHUTDOWN_TIMEOUT"}


CODE = [*(ROOT / "elastic_core").rglob("*.py"), *(ROOT / "plugins").glob("*/elastic_*/**/*.py")]


def takers_of_events(tree):
    """Return the functions and classes that take an `EventName`, each with the argument's position."""
    owners = {id(item): node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for item in node.body}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            arguments = [*function.args.posonlyargs, *function.args.args]
            kinds = [ast.unparse(it.annotation) if it.annotation else "" for it in arguments if it.arg != "self"]
            if "EventName" in kinds:
                name = owners[id(function)] if function.name == "__init__" else function.name
                yield name, kinds.index("EventName")


def test_code_logs_only_listed_events():
    trees = [ast.parse(path.read_text()) for path in CODE]
    places = dict.fromkeys(LEVELS, 0) | dict(taker for tree in trees for taker in takers_of_events(tree))
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [(getattr(call.func, "attr", getattr(call.func, "id", "")), call.args) for call in calls]
    given = [args[places[name]] for name, args in named if name in places and len(args) > places[name]]
    texts = {each.value for value in given for each in ast.walk(value) if isinstance(each, ast.Constant)}
    names = {text for text in texts if isinstance(text, str)}
    assert names - set(EVENTS) == set()
    assert {
        "round formed",
        "became leader",
        "metric lost",
    } <= names  # by a logger, and by functions that take an event name


def test_every_log_event_is_used():
    sources = "\n".join(path.read_text() for path in CODE)
    assert [name for name in EVENTS if f'"{name}"' not in sources] == []


def test_paths_in_the_docs_exist():
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"`((?:agent|workers|interfaces|builtin|hooks|examples|benchmarks)/[\w/.-]+\.\w+)`", text))
    missing = [name for name in named if not ((ROOT / name).exists() or (ROOT / "elastic_core" / name).exists())]
    assert missing == []
