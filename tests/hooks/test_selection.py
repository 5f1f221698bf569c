from __future__ import annotations

import re

import pytest
from hook_examples import load

from elastic_core.errors import ExitCode, PluginError, RendezvousConnectionError
from elastic_core.hooks.records import (
    Context,
    HealthEndpointRecord,
    RendezvousBackendRecord,
    StoreRecord,
    WatchdogRecord,
)
from elastic_core.rendezvous import RendezvousParameters


def refusal(manager, name, kind=RendezvousBackendRecord):
    with pytest.raises(PluginError) as raised:
        manager.select(kind, name)
    assert raised.value.exit_code == ExitCode.BAD_CONFIGURATION
    (problem,) = raised.value.problems
    return problem


def test_backend_is_selected_by_name_or_alias(install_plugin, backend_source):
    manager = load(install_plugin("dist-a", backend_source("redis", aliases=("valkey", "redis"))))
    by_name, by_alias = (manager.provided(RendezvousBackendRecord, name).record for name in ("redis", "valkey"))
    assert by_name is by_alias
    assert manager.select(RendezvousBackendRecord, "valkey").name == "redis"
    assert str(manager.provided(RendezvousBackendRecord, "redis").source) == "dist-a 1.0"


FACTORIES = """
    from elastic_core.errors import RendezvousConnectionError
    from elastic_core.plugin import RendezvousBackendRecord, StoreRecord, hookimpl

    def lacks(*given):
        import no_such_library.client

    def breaks(*given):
        raise KeyError("dsn")

    def refused(*given):
        raise ConnectionRefusedError("no")

    def leaves(*given):
        raise SystemExit(1)

    def away(*given):
        raise RendezvousConnectionError("no server")

    @hookimpl
    def elastic_rendezvous_backends():
        made = {"lacks": lacks, "breaks": breaks, "refused": refused, "leaves": leaves, "away": away}
        return [RendezvousBackendRecord(name, "a test", call, open_backend=call) for name, call in made.items()]

    @hookimpl
    def elastic_stores():
        return [StoreRecord("void", "a store", lacks), StoreRecord("broken", "a store", breaks),
                StoreRecord("shut", "a store", refused)]
    """


@pytest.mark.parametrize("function", ["factory", "open_backend"])
def test_factory_error_names_its_plugin(function, install_plugin):
    manager = load(install_plugin("dist-a", FACTORIES, version="1.2"))

    def problem(name):
        with pytest.raises(PluginError) as raised:
            getattr(manager.select(RendezvousBackendRecord, name), function)(None)
        assert raised.value.exit_code == ExitCode.BAD_CONFIGURATION
        return str(raised.value)

    lacks, breaks = problem("lacks"), problem("breaks")
    assert lacks.startswith("--rdzv-backend: the rendezvous backend 'lacks' of plugin 'dist-a' of dist-a 1.2")
    assert "failed: ModuleNotFoundError: No module named 'no_such_library'; pip install dist-a installs" in lacks
    assert re.search(r"failed: KeyError: 'dsn'; raised in /.*/dist_a_plugin.py, line 9; report it to the", breaks)
    assert "failed: ConnectionRefusedError: no; check the address or file" in problem("refused")
    assert "failed: SystemExit: 1; raised in" in problem("leaves")
    with pytest.raises(RendezvousConnectionError, match="no server"):
        getattr(manager.select(RendezvousBackendRecord, "away"), function)(None)


def test_store_factory_error_is_outage_unless_permanent(install_plugin):
    manager = load(install_plugin("dist-a", FACTORIES))

    def open_state(name):
        params = RendezvousParameters(name, "", "job", 1, 1)
        manager.select(RendezvousBackendRecord, name).open_backend(Context(), params).get_state()

    with pytest.raises(PluginError, match=r"'void' of plugin 'dist-a' of dist-a 1\.0.* pip install dist-a"):
        open_state("void")
    with pytest.raises(PluginError, match=r"'broken' of plugin 'dist-a' of dist-a 1\.0.* failed: KeyError: 'dsn'"):
        open_state("broken")
    with pytest.raises(RendezvousConnectionError, match="no"):
        open_state("shut")


def test_two_providers_are_an_error_naming_both(install_plugin, backend_source):
    manager = load(
        install_plugin("dist-a", backend_source("redis"), version="1.0"),
        install_plugin("dist-b", backend_source("redis", "other"), version="2.0"),
    )
    problem = refusal(manager, "redis")
    assert problem.origin == "--rdzv-backend"
    assert "dist-a 1.0" in problem.message
    assert "dist-b 2.0" in problem.message
    assert problem.message.endswith("ELASTIC_DISABLE_PLUGINS=dist-b")


@pytest.mark.parametrize("name", ["aaa", "zzz", "c10d"])
def test_remedy_blocks_third_party_plugin(name, install_plugin, backend_source):
    ours = install_plugin("elastic-c10d", backend_source("c10d"), plugin="c10d")
    manager = load(ours, theirs := install_plugin(name, backend_source("c10d"), plugin="guest"))
    variable, _, value = refusal(manager, "c10d").message.rpartition(": ")[2].partition("=")
    mended = load(ours, theirs, **{variable: value})
    assert mended.provided(RendezvousBackendRecord, "c10d").source.distribution == "elastic-c10d"


def test_conflict_is_harmless_until_selected(install_plugin, backend_source):
    manager = load(
        install_plugin("dist-a", backend_source("redis")), install_plugin("dist-b", backend_source("redis", "other"))
    )
    assert manager.select(RendezvousBackendRecord, "other").name == "other"
    assert [(conflict.noun, conflict.name) for conflict in manager.conflicts()] == [("rendezvous backend", "redis")]


def test_alias_conflicts_with_name(install_plugin, backend_source):
    manager = load(
        install_plugin("dist-a", backend_source("etcd", aliases=("etcd-v2",))),
        install_plugin("dist-b", backend_source("etcd-v2")),
    )
    assert "dist-a 1.0" in refusal(manager, "etcd-v2").message
    assert manager.select(RendezvousBackendRecord, "etcd").name == "etcd"


def test_remedy_blocks_plugin_within_one_distribution(install, backend_source):
    modules = {"one_mod": backend_source("redis"), "two_mod": backend_source("redis")}
    manager = load(install("dist-a", {"elastic": ["one = one_mod", "two = two_mod"]}, modules))
    assert refusal(manager, "redis").message.endswith("ELASTIC_DISABLE_PLUGINS=two")


def test_unknown_name_lists_alternatives(install_plugin, backend_source):
    manager = load(
        install_plugin("dist-a", backend_source("redis", aliases=("valkey",))),
        install_plugin("dist-b", "import a_module_that_is_not_here", version="0.2"),
        install_plugin("dist-c", ""),
        ELASTIC_DISABLE_PLUGINS="dist-c",
    )
    problem = refusal(manager, "rediss")
    assert problem.origin == "--rdzv-backend"
    assert problem.message.splitlines()[0] == "no rendezvous backend named 'rediss' is installed; did you mean 'redis'?"
    assert "installed: redis/valkey (dist-a 1.0)" in problem.message
    assert "failed to load: plugin 'dist-b' of dist-b 0.2" in problem.message
    assert "ModuleNotFoundError: No module named 'a_module_that_is_not_here'" in problem.message
    assert "blocked by ELASTIC_DISABLE_PLUGINS: plugin 'dist-c' of dist-c 1.0" in problem.message
    assert "pip install" not in problem.message


@pytest.mark.parametrize(
    ("kind", "name", "distribution"),
    [
        (RendezvousBackendRecord, "c10d", "elastic-c10d"),
        (RendezvousBackendRecord, "static", "elastic-c10d"),
        (RendezvousBackendRecord, "etcd", "elastic-etcd"),
        (RendezvousBackendRecord, "etcd-v2", "elastic-etcd"),
        (RendezvousBackendRecord, "etcd-v3", "elastic-etcd"),
        (RendezvousBackendRecord, "etcd-legacy", "elastic-etcd-legacy"),
        (StoreRecord, "tcp", "elastic-c10d"),
        (StoreRecord, "etcd", "elastic-etcd"),
        (WatchdogRecord, "file", "elastic-file-timer"),
        (HealthEndpointRecord, "http", "elastic-http-health"),
    ],
)
def test_known_name_comes_with_pip_install(kind, name, distribution):
    lines = refusal(load(), name, kind).message.splitlines()
    assert lines[-1].strip() == f"to install it: pip install {distribution}"
    assert lines[1].strip() == "installed: none"


def test_misspelled_known_name_is_recognized():
    assert "did you mean 'etcd'?" in refusal(load(), "etdc").message


def test_broken_or_blocked_plugin_has_no_pip_install(install_plugin):
    points = install_plugin("elastic-etcd", "import a_module_that_is_not_here")
    assert "pip install" not in refusal(load(points), "etcd").message
    assert "pip install" not in refusal(load(points, ELASTIC_DISABLE_PLUGINS="elastic-etcd"), "etcd").message


STORE = """
from elastic_core.plugin import Option, RendezvousBackendRecord, StoreRecord, hookimpl

@hookimpl
def elastic_stores():
    return [StoreRecord({name!r}, "a test", print, (Option("ttl", float, None, "it"),), shared={shared})]
"""
BACKEND_TOO = """
@hookimpl
def elastic_rendezvous_backends():
    return [RendezvousBackendRecord("ours", "its own", print, aliases=({name!r},))]
"""


def test_store_provides_backend_of_its_name(install_plugin):
    manager = load(install_plugin("dist-a", STORE.format(name="redis", shared=True)))
    found = manager.provided(RendezvousBackendRecord, "redis")
    assert str(found.source) == "dist-a 1.0"
    assert "ttl" in [option.name for option in found.record.options]
    assert manager.conflicts() == ()


def test_unshared_store_provides_no_backend(install_plugin):
    manager = load(install_plugin("dist-a", STORE.format(name="redis", shared=False)))
    assert manager.records(RendezvousBackendRecord) == ()
    assert manager.select(StoreRecord, "redis").name == "redis"


def test_plugins_own_backend_is_preferred(install_plugin):
    manager = load(install_plugin("dist-a", (STORE + BACKEND_TOO).format(name="redis", shared=True)))
    assert manager.select(RendezvousBackendRecord, "redis").name == "ours"


def test_own_backend_takes_an_alias_of_the_store(install_plugin):
    source = STORE.replace("shared=", 'aliases=("redis-v2",), shared=') + BACKEND_TOO.replace("{name!r}", '"redis-v2"')
    manager = load(install_plugin("dist-a", source.format(name="redis", shared=True)))
    assert manager.select(RendezvousBackendRecord, "redis-v2").name == "ours"
    assert manager.select(RendezvousBackendRecord, "redis").name == "redis"
    assert manager.conflicts() == ()


def test_store_backend_conflicts_like_any_other(install_plugin, backend_source):
    manager = load(
        install_plugin("dist-a", STORE.format(name="redis", shared=True)),
        install_plugin("dist-b", backend_source("redis")),
    )
    assert "dist-a 1.0" in refusal(manager, "redis").message


def test_record_of_a_subclass_is_selected(install_plugin):
    source = """
        from elastic_core.plugin import WatchdogRecord, hookimpl

        class OurRecord(WatchdogRecord):
            pass

        @hookimpl
        def elastic_watchdogs():
            return [OurRecord("ours", "a test", lambda context: 1 / 0)]
        """
    with pytest.raises(PluginError, match="the watchdog 'ours' of plugin 'dist-a'"):
        load(install_plugin("dist-a", source)).select(WatchdogRecord, "ours").factory(Context())
