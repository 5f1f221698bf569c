from __future__ import annotations

import sys

import pytest

from elastic_core.errors import PluginError
from elastic_core.hooks.manager import PluginManager
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.interfaces.handler import RendezvousParameters

HANDLER = """
    class Handler:
        def __init__(self, params):
            self.params = params

    def make_creator():
        return Handler

    def give_nothing():
        return None

    def fail():
        raise RuntimeError("no driver")
    """
PARAMS = RendezvousParameters("old", "host:1", "job", 1, 2, colour="red")


def load(*points, **environ):
    return PluginManager.load(environ, builtins=(), entry_points=[point for some in points for point in some])


@pytest.fixture
def handler_points(install):
    """A function that installs a handler written for torchrun under the name `old`."""

    def handler_points(target="make_creator", name="old-dist", version="0.7"):
        module = f"{name.replace('-', '_')}_handler"
        lines = {"torchrun.handlers": [f"old = {module}:{target}"]}
        return install(name, lines, {module: HANDLER}, version)

    return handler_points


def test_it_is_a_backend_that_takes_any_option(handler_points):
    record = load(handler_points()).select(RendezvousBackendRecord, "old")
    assert record.options is None
    assert record.factory(PARAMS).params is PARAMS


def test_it_is_not_imported_before_it_is_made(handler_points):
    manager = load(handler_points())
    record = manager.select(RendezvousBackendRecord, "old")
    assert manager.records(RendezvousBackendRecord)[0].source.version == "0.7"
    assert "old_dist_handler" not in sys.modules
    record.factory(PARAMS)
    assert "old_dist_handler" in sys.modules


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("absent", "AttributeError"),
        ("fail", "RuntimeError: no driver"),
        ("give_nothing", "gave None, expected a function"),
    ],
)
def test_a_failure_names_distribution_and_version(handler_points, target, why):
    record = load(handler_points(target)).select(RendezvousBackendRecord, "old")
    with pytest.raises(PluginError) as raised:
        record.factory(PARAMS)
    assert "torchrun.handlers: old" in str(raised.value)
    assert f"old_dist_handler:{target} of old-dist 0.7" in str(raised.value)
    assert why in str(raised.value)


def test_the_own_backend_of_the_same_distribution_wins(install, backend_source):
    groups = {"elastic": ["plugin = both_native"], "torchrun.handlers": ["old = both_handler:make_creator"]}
    points = install("both", groups, {"both_native": backend_source("old"), "both_handler": HANDLER})
    manager = load(points)
    assert manager.select(RendezvousBackendRecord, "old").options == ()
    assert manager.conflicts() == ()


def test_a_backend_of_another_distribution_is_a_conflict(handler_points, install_plugin, backend_source):
    manager = load(handler_points(), install_plugin("new-dist", backend_source("old")))
    with pytest.raises(PluginError) as raised:
        manager.select(RendezvousBackendRecord, "old")
    assert "new-dist 1.0" in str(raised.value)
    assert "old-dist 0.7" in str(raised.value)
    assert [conflict.name for conflict in manager.conflicts()] == ["old"]


def test_it_can_be_blocked(handler_points):
    manager = load(handler_points(), ELASTIC_DISABLE_PLUGINS="old")
    assert manager.records(RendezvousBackendRecord) == ()
    assert manager.handlers == ()
    assert [source.plugin for source in manager.blocked] == ["old"]
