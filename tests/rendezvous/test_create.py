from __future__ import annotations

from datetime import timedelta

import pytest
from elastic_testing import MemoryBackend, SharedMemory

from elastic_core.builtin import MemoryStore
from elastic_core.errors import ConfigurationError
from elastic_core.interfaces.node import Node
from elastic_core.plugin import BACKEND_OPTIONS
from elastic_core.rendezvous import RendezvousParameters, create_handler
from elastic_core.support.sockets import reached_at


@pytest.fixture
def create():
    made = []

    def make(node=None, local_addr=None, nodes=(1, 2), endpoint="", **config):
        params = RendezvousParameters("memory", endpoint, "job", *nodes, local_addr, node, **config)
        made.append(create_handler(MemoryStore(), MemoryBackend(SharedMemory()), params))
        return made[-1]

    yield make
    for handler in made:
        handler.shutdown()


def test_documented_defaults_are_the_real_ones(create):
    settings = create().settings
    shown = {option.name: option.default for option in BACKEND_OPTIONS}
    assert shown == {
        "join_timeout": settings.timeout.join.total_seconds(),
        "last_call_timeout": settings.timeout.last_call.total_seconds(),
        "close_timeout": settings.timeout.close.total_seconds(),
        "heartbeat_timeout": settings.timeout.heartbeat.total_seconds(),
        "secret_file": None,
        "connect_timeout": settings.connect_timeout,
        "keep_alive_interval": settings.keep_alive_interval,
        "keep_alive_max_attempt": settings.keep_alive_max_attempt,
    }
    assert (settings.run_id, settings.min_nodes, settings.max_nodes) == ("job", 1, 2)


def test_option_values_may_be_text_or_typed(create):
    settings = create(join_timeout="1.5", last_call_timeout=0, keep_alive_max_attempt="3", close_timeout=None).settings
    assert (settings.timeout.join, settings.timeout.last_call) == (timedelta(seconds=1.5), timedelta())
    assert (settings.timeout.close, settings.keep_alive_max_attempt) == (timedelta(minutes=1), 3)


@pytest.mark.parametrize("signs", [True, False])
def test_handler_shows_the_seal_with_which_it_signs(create, tmp_path, signs):
    """Otherwise, a job with a secret would be refused."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"a secret of the job, and more than that")
    secret.chmod(0o600)
    assert create(**({"secret_file": str(secret)} if signs else {})).seal.signs == signs


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("join_timeout", "soon", "join_timeout: expected a number of seconds > 0, found 'soon'"),
        ("join_timeout", "nan", "join_timeout: expected a number of seconds > 0, found 'nan'"),
        ("close_timeout", float("inf"), "close_timeout: expected a number of seconds > 0, found inf"),
        ("keep_alive_max_attempt", "2.5", "keep_alive_max_attempt: expected a whole number >= 2, found '2.5'"),
        ("keep_alive_interval", [], "keep_alive_interval: expected a number of seconds > 0"),
        ("join_timeout", 0, "join_timeout: expected a number of seconds > 0, found 0"),
        ("last_call_timeout", -1, "last_call_timeout: expected a number of seconds >= 0, found -1"),
        ("keep_alive_interval", 0, "keep_alive_interval: expected a number of seconds > 0, found 0"),
        ("keep_alive_max_attempt", 1, "keep_alive_max_attempt: expected a whole number >= 2, found 1"),
    ],
)
def test_option_out_of_bounds_is_an_error(create, option, value, message):
    with pytest.raises(ConfigurationError, match=message):
        create(**{option: value})


@pytest.mark.integration
@pytest.mark.parametrize(
    ("endpoint", "local_addr", "nodes", "expected"),
    [
        ("", "10.0.0.1", 2, "10.0.0.1"),
        ("127.0.0.3", None, 1, "127.0.0.1"),
        ("127.0.0.3", None, 2, None),
        ("redis://:secret@localhost:6379/0", None, 2, None),
        ("a..b, 0.0.0.0:1", None, 2, None),
        ("a..b", None, 2, None),
        ("/a/file", None, 2, None),
        ("", None, 2, None),
    ],
)
def test_advertised_address_is_that_of_the_endpoint_route(create, endpoint, local_addr, nodes, expected):
    """The local address of the route to the endpoint, because other machines may not know the host name."""
    info = create(Node("a", host="h"), local_addr, (1, nodes), endpoint, last_call_timeout=0.0).next_rendezvous()
    assert info.bootstrap_store_info.master_addr == (expected or reached_at())


def test_missing_store_is_an_error():
    with pytest.raises(ValueError, match="pass either a store"):
        create_handler(None, MemoryBackend(SharedMemory()), RendezvousParameters("memory", "", "job", 1, 1))
