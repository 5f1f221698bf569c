"""Events and JSON documents have the keys in the reference."""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path

import pytest

from elastic_core import config
from elastic_core.clock import Instant
from elastic_core.config import explain
from elastic_core.errors import ProcessFailure
from elastic_core.events import Event, open_handler
from elastic_core.hooks import listing
from elastic_core.hooks.manager import PluginManager
from elastic_core.interfaces.health import AgentPhase, StopStatus
from elastic_core.interfaces.node import Round
from elastic_core.interfaces.observer import (
    AgentFinished,
    PhaseChanged,
    RestartDecided,
    RoundFormed,
    WorkerFailed,
    WorkersStarted,
)
from elastic_core.observers import EventRecorder

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def table(page, title):
    """Return the rows of the first table below a heading."""
    below = (REFERENCE / page).read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in re.findall(r"^\| .*", below, re.M)]
    return {re.search("`([^`]+)`", row[0])[1]: row for row in rows[1:]}


def test_page_lists_the_metadata_of_events(capsys):
    recorder = EventRecorder(open_handler("console"))
    recorder(RoundFormed("job", 1, 0, 1, 0.1, Round(1, ())))
    recorder(WorkersStarted("job", 1, {0: 1}))
    recorder(WorkerFailed("job", ProcessFailure(0, 1, 1)))
    recorder(RestartDecided("job", 1, "failure", "", 1, 1))
    stop = StopStatus(1, 40, 69.0, 99.0, (0,), (1,))
    recorder(PhaseChanged("job", AgentPhase.STOPPING, "", Instant(1.0), stop=stop))
    recorder(AgentFinished("job", "SUCCEEDED", "", 0))
    seen = {event.name: event for event in map(Event.deserialize, capsys.readouterr().err.splitlines())}
    rows = table("events.md", "Events")
    assert set(rows) == set(seen)
    for name, row in rows.items():
        told = set(re.findall(r"`([a-z_]+)`", row[2])) - {"failure", "hang", "membership"}
        assert told == set(seen[name].metadata), name


def test_page_lists_the_keys_of_explain():
    document = explain.as_dict(config.read(config.Sources(["x.py"], {}, Path("/")), require_script=False), ())
    rows = table("json.md", "`elastic explain --json`")
    assert list(rows) == list(document)
    entry = document["settings"]["nnodes"]
    assert set(re.findall("`([a-z]+)`", rows["settings"][2])) == set(entry)


def test_page_lists_the_keys_of_plugins():
    assert list(table("json.md", "`elastic plugins --json`")) == list(listing.as_dict(PluginManager.load(os.environ)))


POINTS = """
[elastic]
one = elastic_core.builtin
two = elastic_core.builtin.local_that_is_not_there
unwanted = elastic_core.builtin
[torchrun.handlers]
zk = absent_one:create
"""


@pytest.fixture
def full(tmp_path):
    """A listing of two distributions with no empty list."""
    for name in ("one", "other"):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(POINTS.replace("one", name))
    points = [point for found in importlib.metadata.distributions(path=[str(tmp_path)]) for point in found.entry_points]
    return listing.as_dict(PluginManager.load({"ELASTIC_DISABLE_PLUGINS": "unwanted,ghost"}, points))


@pytest.mark.parametrize("part", ["plugins", "torchrun_handlers", "failed", "blocked", "conflicts"])
def test_page_lists_the_keys_of_each_part_of_plugins(part, full):
    told, _, inner = table("json.md", "`elastic plugins --json`")[part][2].partition(", a list of ")
    assert set(re.findall("`([a-z_]+)`", told)) == set(full[part][0])
    assert set(re.findall("`([a-z_]+)`", inner)) == {key for item in full[part][0].get("providers", ()) for key in item}


def test_every_document_contains_its_schema_version(full):
    explained = explain.as_dict(config.read(config.Sources(["x.py"], {}, Path("/")), require_script=False), ())
    told = re.findall(r"^\| `version` .* version of this schema: (\d+)", (REFERENCE / "json.md").read_text(), re.M)
    assert [int(number) for number in told] == [explained["version"], full["version"]]


def test_page_lists_the_keys_of_records_and_options():
    plugins = listing.as_dict(PluginManager.load(os.environ))["plugins"]
    record = next(record for plugin in plugins for record in plugin["records"] if record["options"])
    text = (REFERENCE / "json.md").read_text().partition("\nA record has ")[2]
    of_record, _, of_option = text.partition("; an option ")
    assert set(re.findall("`([a-z]+)`", of_record)) == set(record)
    assert set(re.findall("`([a-z]+)`", of_option)) == set(record["options"][0])
