"""The plugin's records and options."""

from __future__ import annotations

import subprocess
import sys

import pytest
from elastic_c10d import plugin
from elastic_c10d.static import as_dynamic

from elastic_core.errors import ConfigurationError, PluginError
from elastic_core.hooks.manager import PluginManager
from elastic_core.hooks.records import Context
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.plugin import RendezvousBackendRecord
from elastic_core.rendezvous.settings import settings_of


def test_plugin_import_does_not_load_torch():
    code = "import sys, elastic_c10d.plugin, elastic_c10d; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=180).returncode == 0


def record(name):
    records = [*plugin.elastic_rendezvous_backends(), *plugin.elastic_stores()]
    return next(record for record in records if record.name == name)


def defaults(name):
    return {option.name: option.default for option in record(name).options}


def test_file_backend_has_no_options_of_tcp_stores():
    assert defaults("c10d").keys() - defaults("file") == {"store_type", "is_host", "outage_grace", "read_timeout"}


@pytest.mark.parametrize("call", ["factory", "open_backend"])
def test_missing_torch_error_names_it_and_the_plugin(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    chosen = PluginManager.load({}).select(RendezvousBackendRecord, "c10d")
    with pytest.raises(PluginError, match=r"'c10d' of elastic-c10d .*'torch'.*install"):
        getattr(chosen, call)(Context(), RendezvousParameters("c10d", "127.0.0.1:1", "job", 1, 1, **defaults("c10d")))


def static(nodes=2, minimum=None, **config):
    return RendezvousParameters("static", config.pop("endpoint", ""), "none", minimum or nodes, nodes, **config)


def test_static_is_c10d_with_rank_0_as_host():
    first = as_dynamic(static(rank=0, master_addr="node0", master_port=1234, timeout=30.0))
    second = as_dynamic(static(rank=1, endpoint="node0:1234"))
    assert (first.endpoint, second.endpoint) == ("node0:1234", "node0:1234")
    assert (first.get("is_host"), second.get("is_host")) == (True, False)
    assert (first.node.rank_hint, second.node.rank_hint) == (0, 1)
    assert first.get("join_timeout") == 30.0
    assert settings_of(first).first_contact == (30.0, "timeout")
    assert as_dynamic(static(nodes=1)).endpoint == "127.0.0.1:29500"


@pytest.mark.parametrize("name", ["join_timeout", "timeout"])
def test_static_has_both_names_of_the_join_timeout(name):
    given = {**defaults("static"), "rank": 0, name: 30.0}
    assert settings_of(as_dynamic(static(**given))).first_contact == (30.0, name)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        (static(nodes=3, minimum=1, rank=0), "requires a fixed number of nodes"),
        (static(nodes=2), "requires --node-rank"),
        (static(nodes=2, rank=2), "expected a rank from 0 to 1, found 2"),
        (static(nodes=2, rank=-1), "expected a rank from 0 to 1, found -1"),
        (static(nodes=2, rank="first"), "expected a whole number"),
    ],
)
def test_static_refuses_invalid_parameters(params, problem):
    with pytest.raises(ConfigurationError, match=problem):
        as_dynamic(params)


def test_static_reports_all_problems_together():
    with pytest.raises(ConfigurationError) as caught:
        as_dynamic(static(nodes=3, minimum=1))
    assert len(caught.value.problems) == 2
