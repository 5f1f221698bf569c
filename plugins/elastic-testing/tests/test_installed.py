"""Installed backends, stores, watchdogs and endpoints, made by name."""

from __future__ import annotations

import pytest
from elastic_testing import (
    FakeAgentView,
    installed_backend,
    installed_health_endpoint,
    installed_store,
    installed_watchdog,
    rendezvous_parameters,
)

from elastic_core.errors import ConfigurationError, PluginError

PLUGIN = """
from elastic_core.plugin import (
    HealthEndpointRecord, Option, RendezvousBackendRecord, StoreRecord, WatchdogRecord, hookimpl,
)

options = (Option("ttl", float, 3.0, "lease", "seconds"), Option("tls", bool, None, "encrypt"))


class Made(tuple):
    compare_set = start = stop = next_rendezvous = worker_environment = fault = scratch = None


def make(*given):
    return Made(given)


@hookimpl
def elastic_stores():
    return [StoreRecord("mine", "a test", make, options)]


@hookimpl
def elastic_watchdogs():
    return [WatchdogRecord("mine", "a test", make, options)]


@hookimpl
def elastic_health_endpoints():
    return [HealthEndpointRecord("mine", "a test", make, options)]


@hookimpl
def elastic_rendezvous_backends():
    return [
        RendezvousBackendRecord("mine", "a test", make, options, open_backend=make),
        RendezvousBackendRecord("closed", "a test", make, options),
    ]
"""


@pytest.fixture
def installed(put_on_path):
    """A distribution with one record of each kind, whose factories return their arguments."""
    put_on_path("mine", {"elastic": ["mine = mine_plugin"]}, {"mine_plugin": PLUGIN})


@pytest.mark.usefixtures("installed")
def test_options_are_typed_and_unset_ones_have_defaults():
    (context,) = installed_store("mine", tls="yes")
    assert context.options == {"ttl": 3.0, "tls": True}
    (context,) = installed_watchdog("mine", "job", ttl=5)
    assert (context.run_id, context.options) == ("job", {"ttl": 5.0, "tls": None})
    view = FakeAgentView()
    context, *rest = installed_health_endpoint("mine", view, 80, 30.0)
    assert (rest, context.options) == ([view, 80, 30.0], {"ttl": 3.0, "tls": None})


@pytest.mark.usefixtures("installed")
def test_backend_gets_the_same_parameters_as_its_factory():
    _, params = installed_backend("mine", "host:1", "job", ttl="7")
    same = rendezvous_parameters("mine", "host:1", "job", ttl="7")
    for given in (params, same):
        assert (given.backend, given.endpoint, given.run_id) == ("mine", "host:1", "job")
        assert (given.min_nodes, given.max_nodes, given.config) == (1, 1, {"ttl": 7.0, "tls": None})
    bounds = rendezvous_parameters("mine", "host:1", "job", 2, 4)
    assert (bounds.min_nodes, bounds.max_nodes) == (2, 4)


@pytest.mark.usefixtures("installed")
def test_unknown_names_and_options_are_refused():
    with pytest.raises(PluginError, match="no store named 'yours' is installed"):
        installed_store("yours")
    with pytest.raises(ConfigurationError) as refused:
        installed_watchdog("mine", "job", ttl="soon", tsl=True)
    assert {problem.origin for problem in refused.value.problems} == {"mine: ttl", "mine: tsl"}
    with pytest.raises(TypeError, match="the record of 'closed' has no open_backend"):
        installed_backend("closed", "host:1", "job")
