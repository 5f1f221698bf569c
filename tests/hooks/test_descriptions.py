"""Descriptive functions of backend records: their results are converted, and their errors name the plugin."""

from __future__ import annotations

from functools import partial

import pytest

from elastic_core.config import Sources, read
from elastic_core.errors import ConfigurationError, PluginError, Problem
from elastic_core.hooks.discovery import Source
from elastic_core.hooks.records import RendezvousBackendRecord, WorkerStarterRecord
from elastic_core.hooks.selection import attributed


def broken(settings):
    yield Problem("--rdzv-endpoint", "a first problem")
    raise ZeroDivisionError("a fault of mine")


@pytest.fixture
def reading(plugins, tmp_path):
    """A function that reads a command line with a backend that has these fields."""

    def reading(*words, **fields):
        manager = plugins(RendezvousBackendRecord("toy", "a test", print, **fields))
        argv = ["--rdzv-backend=toy", *words]
        sources = Sources(argv, {"HOME": str(tmp_path)}, tmp_path)
        return read(sources, require_script=False, backend_named=manager.backend_named)

    return reading


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"problems": broken}, "failed: ZeroDivisionError: a fault of mine"),
        ({"problems": lambda _: None}, "<lambda> must return Problems, but returned None"),
        ({"problems": lambda _: "text"}, "<lambda> must return Problems, but returned 'text'"),
        ({"defaults": lambda _: None}, "must return a mapping of names to pairs"),
        ({"defaults": lambda _: {"rdzv_id": "ab"}}, "must return a mapping of names to pairs"),
        ({"defaults": lambda _: {"rdzv_di": ("x", "y")}}, "set unknown settings: rdzv_di"),
        ({"defaults": lambda _: {"nnodes": ("none", "y")}}, "defaults of the backend 'toy': nnodes: expected"),
    ],
)
def test_invalid_description_names_the_plugin(reading, fields, message):
    with pytest.raises(PluginError, match=message):
        reading(**fields)


def test_defaults_are_typed_and_do_not_override_settings(reading):
    usual = {"defaults": lambda _: {"nnodes": ("2", "the board has two"), "rdzv_id": ("board", "its name")}}
    read = reading("--rdzv-id=mine", **usual)
    assert (read.settings.nnodes.max, read.settings.rdzv_id) == (2, "mine")
    assert read.origins["nnodes"] == "the board has two"


def test_problems_are_reported_with_those_of_flags(reading):
    with pytest.raises(ConfigurationError) as raised:
        reading("--max-restarts=x", problems=lambda _: [Problem("--rdzv-endpoint", "a first problem")])
    assert [problem.origin for problem in raised.value.problems] == ["--max-restarts", "--rdzv-endpoint"]


def test_explanation_of_a_starter_must_be_json():
    def explained(explain):
        record = WorkerStarterRecord("toy", "a test", print, explain=explain)
        return attributed(record, Source("toys", "toy", "1.0")).record.explain(None, None)

    assert explained(lambda *_: None) == {}
    with pytest.raises(PluginError, match="must return JSON values by name, but returned 7"):
        explained(partial(lambda *_: 7))
