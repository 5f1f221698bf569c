from __future__ import annotations

from datetime import timedelta

import pytest
from elastic_testing import MemoryBackend, SharedMemory

from elastic_core.builtin import MemoryStore
from elastic_core.errors import ConfigurationError
from elastic_core.rendezvous import (
    DynamicRendezvousHandler,
    RendezvousHandlerRegistry,
    RendezvousParameters,
    create_handler,
    get_rendezvous_handler,
    rendezvous_handler_registry,
)


def memory_handler(params):
    return create_handler(MemoryStore(), MemoryBackend(SharedMemory()), params)


def parameters(backend="memory", nodes=(1, 1), **config):
    return RendezvousParameters(backend, "", "job", *nodes, **config)


def test_registered_creator_makes_handlers():
    registry = RendezvousHandlerRegistry()
    registry.register("memory", memory_handler)
    registry.register("memory", memory_handler)
    assert registry.create_handler(parameters()).get_backend() == "memory"


def test_duplicate_or_empty_name_is_an_error():
    registry = RendezvousHandlerRegistry()
    registry.register("memory", memory_handler)
    with pytest.raises(ValueError, match="'memory' already has a creator"):
        registry.register("memory", lambda params: memory_handler(params))
    with pytest.raises(ValueError, match="is empty"):
        registry.register("", memory_handler)


def test_unknown_backend_names_the_known_ones():
    registry = RendezvousHandlerRegistry()
    with pytest.raises(ValueError, match=r"\(none\), found 'memory'"):
        registry.create_handler(parameters())
    registry.register("other", memory_handler)
    with pytest.raises(ValueError, match=r"\(other\), found 'memory'"):
        registry.create_handler(parameters())


def test_handler_of_another_backend_is_an_error():
    registry = RendezvousHandlerRegistry()
    registry.register("other", memory_handler)
    with pytest.raises(RuntimeError, match="for 'other', found one for 'memory'"):
        registry.create_handler(parameters("other"))


def test_process_registry_comes_first():
    rendezvous_handler_registry.register("memory", memory_handler)
    handler = get_rendezvous_handler(parameters())
    assert isinstance(handler, DynamicRendezvousHandler)
    assert handler.shutdown()


@pytest.mark.integration
def test_local_backend_is_built_in():
    handler = get_rendezvous_handler(parameters("local"))
    assert handler.next_rendezvous().world_size == 1
    assert handler.shutdown()


def test_unknown_option_is_an_error():
    with pytest.raises(ConfigurationError, match="tiemout"):
        get_rendezvous_handler(parameters("local", tiemout=3))


@pytest.mark.torch
@pytest.mark.parametrize("name", ["static", "tcp"])
def test_handler_keeps_the_alias_that_was_used(name):
    handler = get_rendezvous_handler(RendezvousParameters(name, "127.0.0.1:29400", "job", 1, 1))
    assert handler.get_backend() == name
    assert handler.shutdown()


@pytest.mark.torch
def test_installed_plugin_is_found_by_name():
    params = RendezvousParameters("c10d", "127.0.0.1:29400", "job", 1, 1, join_timeout="20", keep_alive_interval="0.5")
    handler = get_rendezvous_handler(params)
    try:
        assert handler.get_backend() == "c10d"
        assert handler.settings.timeout.join == timedelta(seconds=20)
        assert handler.settings.keep_alive_interval == 0.5
    finally:
        handler.shutdown()


PLUGIN = """
from elastic_core.plugin import ConfigurationError, Option, Problem, RendezvousBackendRecord, hookimpl


@hookimpl
def elastic_add_options():
    return [Option("team", str, "blue", "who pays")]


def make(context, params):
    context.log.info("asked")
    team, pairs = context.options["team"], context.options["pairs"]
    raise ConfigurationError(Problem("a test", f"{context.run_id} {team} {pairs}"))


@hookimpl
def elastic_rendezvous_backends():
    return [RendezvousBackendRecord("paid", "a test", make, (Option("pairs", int, 2, "how many"),))]
"""


def test_backend_gets_its_plugin_s_context(put_on_path):
    put_on_path("payer", {"elastic": ["payer = payer_backend"]}, {"payer_backend": PLUGIN})
    with pytest.raises(ConfigurationError, match="job blue 3"):
        get_rendezvous_handler(parameters("paid", pairs="3"))
