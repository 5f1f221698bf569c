from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest
from hook_examples import load

from elastic_core.hooks.records import RendezvousBackendRecord, WatchdogRecord

GOOD = """
    from elastic_core.plugin import WatchdogRecord, hookimpl

    @hookimpl
    def elastic_watchdogs():
        return [WatchdogRecord("good", "a test", print)]
    """


def names(manager, kind):
    return [provided.record.name for provided in manager.records(kind)]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import a_module_that_is_not_here", "ModuleNotFoundError: No module named 'a_module_that_is_not_here'"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise ValueError", "ValueError"),
        ("def f(:", "SyntaxError"),
        (
            "from elastic_core.plugin import hookimpl\n@hookimpl\ndef elastic_rendezvous_backend(): return []",
            "unknown hook 'elastic_rendezvous_backend'; did you mean 'elastic_rendezvous_backends'?",
        ),
        (
            "from elastic_core.plugin import hookimpl\n@hookimpl\ndef elastic_stores(settings): return []",
            "elastic_stores",
        ),
        (
            "from elastic_core.plugin import hookimpl\n@hookimpl(wrapper=True)\ndef elastic_stores(): return (yield)",
            "elastic_stores is a hook wrapper",
        ),
        ("def elastic_stores(): return []", "elastic_stores is not marked; write @hookimpl above it"),
        (
            "from elastic_core.plugin import hookimpl\n@hookimpl\ndef elastic_stores(): raise KeyError('x')",
            "elastic_stores raised KeyError: 'x'",
        ),
        (
            "from elastic_core.plugin import hookimpl\n@hookimpl\ndef elastic_stores(): return None",
            "elastic_stores must return a list of StoreRecord, but returned None",
        ),
        (
            "from elastic_core.plugin import hookimpl\n@hookimpl\ndef elastic_stores(): return ['tcp']",
            "elastic_stores must return a list of StoreRecord, but the list contains an object of type str",
        ),
    ],
)
def test_bad_plugin_is_recorded_and_others_load(install_plugin, source, reason):
    manager = load(install_plugin("bad-dist", source, version="6.6"), install_plugin("good-dist", GOOD))
    (failure,) = manager.failures
    assert reason in failure.reason
    assert (failure.source.plugin, failure.source.distribution, failure.source.version) == ("bad-dist",) * 2 + ("6.6",)
    assert [plugin.source.distribution for plugin in manager.plugins] == ["good-dist"]
    assert names(manager, WatchdogRecord) == ["good"]


def test_plugin_with_one_bad_hook_provides_nothing(install_plugin, backend_source):
    source = backend_source("half") + GOOD.replace("return [", "return 1 + [")
    manager = load(install_plugin("half-dist", source))
    assert names(manager, RendezvousBackendRecord) == names(manager, WatchdogRecord) == []
    assert manager.implementations("elastic_rendezvous_backends") == ()
    assert manager.plugins == ()


@pytest.mark.parametrize(
    ("second", "reason"),
    [("b", "twice_mod is already loaded"), ("a", "another plugin with that name is already loaded: twice_mod")],
)
def test_module_named_twice_is_loaded_once(install, second, reason):
    points = install("twice", {"elastic": ["a = twice_mod", f"{second} = twice_mod"]}, {"twice_mod": GOOD})
    manager = load(points)
    assert [plugin.target for plugin in manager.plugins] == ["twice_mod"]
    assert reason in manager.failures[0].reason
    assert names(manager, WatchdogRecord) == ["good"]


def test_plugin_may_be_an_object_but_not_a_class(install):
    source = """
        from elastic_core.plugin import WatchdogRecord, hookimpl

        class Plugin:
            def __init__(self, name):
                self.name = name

            @hookimpl
            def elastic_watchdogs(self):
                return [WatchdogRecord(self.name, "a test", print)]

        plugin = Plugin("from-object")
        """
    manager = load(install("objects", {"elastic": ["a = objects:plugin", "b = objects:Plugin"]}, {"objects": source}))
    assert names(manager, WatchdogRecord) == ["from-object"]
    assert "found the class Plugin; export an instance" in manager.failures[0].reason


def test_blocked_plugin_is_not_imported(install_plugin):
    points = install_plugin("noisy", "raise SystemExit('imported')")
    manager = load(points, ELASTIC_DISABLE_PLUGINS="noisy,ghost")
    assert manager.failures == manager.plugins == ()
    assert [source.distribution for source in manager.blocked] == ["noisy"]
    assert manager.unknown_blocks == ("ghost",)
    (warning,) = manager.about_unknown_blocks()
    assert warning.startswith("ELASTIC_DISABLE_PLUGINS: no installed plugin or distribution is named 'ghost'")


def test_registration_hooks_are_called_once(install_plugin):
    source = """
        from elastic_core.plugin import WatchdogRecord, hookimpl
        calls = []

        @hookimpl
        def elastic_watchdogs():
            calls.append(1)
            return [WatchdogRecord("counted", "a test", print)]
        """
    manager = load(install_plugin("counted", source))
    manager.records(WatchdogRecord), manager.select(WatchdogRecord, "counted")
    assert sys.modules["counted_plugin"].calls == [1]


def test_entry_points_of_other_groups_are_ignored():
    point = importlib.metadata.EntryPoint("a", "absent_module", "console_scripts")
    assert load([point]).failures == ()


@pytest.mark.integration
def test_loading_imports_neither_structlog_nor_torch():
    code = (
        "import sys\n"
        "from elastic_core.hooks import calls, listing, manager\n"
        "listing.as_text(manager.PluginManager.load({}, entry_points=[]))\n"
        "print([name for name in ('structlog', 'torch', 'etcd3', 'grpc') if name in sys.modules])"
    )
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"
