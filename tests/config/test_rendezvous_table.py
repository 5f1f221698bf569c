"""The table `[rendezvous]` of the config file, with an options table for each backend."""

from __future__ import annotations

import pytest

from elastic_core.hooks.records import RendezvousBackendRecord

TABLE = """
[rendezvous]
backend = "etcd"
endpoint = "node0:2379"
id = 7

[rendezvous.etcd]
prefix = "teams/vision"
join_timeout = 9

[rendezvous.c10d]
is_host = "whatever"
"""


def test_table_sets_backend_endpoint_id_and_options(config_reader):
    config_reader.write(TABLE)
    reading = config_reader.read()
    settings = reading.settings
    assert (settings.rdzv_backend, settings.rdzv_endpoint, settings.rdzv_id) == ("etcd", "node0:2379", "7")
    assert settings.rdzv_conf == {"prefix": "teams/vision", "join_timeout": "9"}
    assert {name: reading.origins[name] for name in ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf")} == {
        "rdzv_backend": "elastic.toml: rendezvous.backend",
        "rdzv_endpoint": "elastic.toml: rendezvous.endpoint",
        "rdzv_id": "elastic.toml: rendezvous.id",
        "rdzv_conf": "elastic.toml: rendezvous.etcd",
    }


def test_only_options_of_the_chosen_backend_apply(config_reader):
    config_reader.write(TABLE)
    assert config_reader.read("--rdzv-backend c10d train.py").settings.rdzv_conf == {"is_host": "whatever"}
    assert config_reader.read("train.py", {"PET_RDZV_BACKEND": "other"}).settings.rdzv_conf == {}
    standalone = config_reader.read("--standalone train.py")
    assert (standalone.settings.rdzv_backend, standalone.settings.rdzv_conf) == ("local", {})


def test_inferred_backend_gets_its_options(config_reader):
    config_reader.write("[rendezvous]\nendpoint = 'node0'\nid = 'j'\n[rendezvous.c10d]\nis_host = true")
    assert config_reader.read().settings.rdzv_conf == {"is_host": "true"}
    config_reader.write("nnodes = 2\n[rendezvous]\nbackend = 'static'\n[rendezvous.static]\nrank = 1")
    assert config_reader.read().settings.node_rank == 1


def test_backend_named_by_an_alias_gets_the_options_under_its_name(config_reader):
    config_reader.write("[rendezvous]\nendpoint = 'h:1'\nid = 'j'\n[rendezvous.toy]\nprefix = 'teams/vision'")
    toy = RendezvousBackendRecord("toy", "", lambda context, params: None, aliases=("toy-v2",))
    read = config_reader.read("--rdzv-backend toy-v2 train.py", backend_named=lambda name: toy)
    assert read.settings.rdzv_conf == {"prefix": "teams/vision"}


def test_two_tables_for_one_backend_are_a_problem(config_reader):
    config_reader.write("[rendezvous]\nendpoint = 'h:1'\nid = 'j'\n[rendezvous.toy]\na = 1\n[rendezvous.toy-v2]\nb = 2")
    toy = RendezvousBackendRecord("toy", "", lambda context, params: None, aliases=("toy-v2",))
    found = config_reader.problems("--rdzv-backend toy-v2 train.py", backend_named=lambda name: toy)
    message = "elastic.toml: rendezvous.toy-v2 contains options for the same backend; merge the tables"
    assert found == {"elastic.toml: rendezvous.toy": message}


def test_options_from_a_flag_replace_the_table(config_reader):
    config_reader.write(TABLE)
    reading = config_reader.read("--rdzv-conf last_call_timeout=1 train.py")
    assert reading.settings.rdzv_conf == {"last_call_timeout": "1"}
    assert reading.origins["rdzv_conf"] == "--rdzv-conf"


def test_pyproject_may_hold_the_table(config_reader):
    config_reader.write("[tool.elastic.rendezvous]\nbackend = 'c10d'\nendpoint = 'a'\nid = 'j'", "pyproject.toml")
    assert config_reader.read().origins["rdzv_backend"] == "pyproject.toml: tool.elastic.rendezvous.backend"


@pytest.mark.parametrize(
    ("text", "origin", "words"),
    [
        ("rendezvous = 'c10d'", "rendezvous", "expected [rendezvous] to be a table, found 'c10d'"),
        (
            "[rendezvous]\nconf = {join_timeout = 3}",
            "rendezvous.conf",
            "a table with a backend's options, such as [rendezvous.c10d]",
        ),
        ("[rendezvous]\nendpiont = 'a'", "rendezvous.endpiont", "did you mean 'endpoint'?"),
        (
            "backend = 'c10d'\n[rendezvous]\nbackend = 'c10d'",
            "rendezvous.backend",
            "already set as elastic.toml: backend",
        ),
        ("rdzv-conf = {a = 1}\n[rendezvous.c10d]\nb = 1", "rendezvous.c10d", "already set as elastic.toml: rdzv-conf"),
        ("[rendezvous.local]\na = [[1]]", "rendezvous.local", "expected"),
        ("[rendezvuos]\nbackend = 'a'", "rendezvuos", "did you mean rendezvous?"),
    ],
)
def test_errors_name_table_and_key(config_reader, text, origin, words):
    config_reader.write(text)
    assert words in config_reader.problems()[f"elastic.toml: {origin}"]
