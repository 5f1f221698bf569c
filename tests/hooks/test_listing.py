from __future__ import annotations

import json

import pytest

from elastic_core.hooks.listing import as_dict, as_text
from elastic_core.hooks.manager import PluginManager

FULL = """
    from elastic_core.plugin import Option, RendezvousBackendRecord, hookimpl

    LEASE = Option("lease", float, 10.0, "how long a silent node counts", "seconds")
    WAIT = Option("wait", float, None, "how long to wait", "seconds")
    TLS = Option("tls", bool, False, "encrypt")

    @hookimpl
    def elastic_rendezvous_backends():
        return [RendezvousBackendRecord("redis", "a Redis server", print, (LEASE, WAIT, TLS), ("valkey",))]

    @hookimpl
    def elastic_add_options():
        return [Option("team", str, None, "who pays")]
    """


@pytest.fixture
def manager(install, install_plugin, backend_source):
    points = [
        *install_plugin("full", FULL, version="1.2"),
        *install_plugin("broken", "import a_module_that_is_not_here"),
        *install_plugin("unwanted", ""),
        *install_plugin("rival", backend_source("redis")),
        *install("old", {"torchrun.handlers": ["zk = absent_module:create"]}),
    ]
    environ = {"ELASTIC_DISABLE_PLUGINS": "unwanted,ghost"}
    return PluginManager.load(environ, entry_points=points)


def test_dictionary_is_complete_json(manager):
    listing = json.loads(json.dumps(as_dict(manager)))
    full = {plugin["plugin"]: plugin for plugin in listing["plugins"]}["full"]
    assert (full["distribution"], full["version"], full["target"]) == ("full", "1.2", "full_plugin")
    assert full["hooks"] == ["elastic_add_options", "elastic_rendezvous_backends"]
    (record,) = full["records"]
    assert (record["kind"], record["name"], record["aliases"]) == ("rendezvous backend", "redis", ["valkey"])
    lease = {"name": "lease", "type": "float", "default": 10.0, "unit": "seconds"}
    assert lease.items() <= record["options"][0].items()
    assert [option["name"] for option in full["options"]] == ["team"]
    assert [handler["target"] for handler in listing["torchrun_handlers"]] == ["absent_module:create"]
    assert listing["failed"][0]["reason"].startswith("ModuleNotFoundError")
    assert [item["plugin"] for item in listing["blocked"]] == ["unwanted"]
    assert listing["blocked_but_not_installed"] == ["ghost"]
    assert [provider["plugin"] for provider in listing["conflicts"][0]["providers"]] == ["full", "rival"]


def test_text_listing_has_each_line(manager):
    expected = [
        "full 1.2: plugin full (full_plugin)",
        "  hooks: elastic_add_options, elastic_rendezvous_backends",
        "  adds option team (str, default unset): who pays",
        "  rendezvous backend redis (also valkey): a Redis server",
        "    lease (float, default 10.0 seconds): how long a silent node counts",
        "    wait (float seconds, default unset): how long to wait",
        "    tls (bool, default False): encrypt",
        "Backends written for torchrun (torchrun.handlers), loaded when selected:",
        "  zk: absent_module:create (old 1.0)",
        "Failed to load:",
        "  broken (broken 1.0): ModuleNotFoundError: No module named 'a_module_that_is_not_here'",
        "Blocked by ELASTIC_DISABLE_PLUGINS:",
        "  unwanted (unwanted 1.0)",
        "  ghost (not installed)",
        "Conflicts (selecting such a name is an error; such options are omitted):",
        "  rendezvous backend redis: full (full 1.2) and rival (rival 1.0)",
    ]
    lines = as_text(manager).splitlines()
    assert [line for line in expected if line not in lines] == []


def test_empty_sections_are_omitted():
    text = as_text(PluginManager.load({}, entry_points=[]))
    assert text.startswith("elastic-core ")
    assert len(text.splitlines()) == 1
