from __future__ import annotations

from hook_examples import load

from elastic_core.config import RESERVED
from elastic_core.hooks.manager import PluginManager


def option_source(name):
    return f"""
        from elastic_core.plugin import Option, hookimpl

        @hookimpl
        def elastic_add_options():
            return [Option({name!r}, str, None, "a test"), Option("own-of-{name}", int, 1, "a test")]
        """


def test_options_of_all_plugins_are_found_by_name(install_plugin):
    manager = load(install_plugin("b", option_source("team")), install_plugin("a", option_source("queue")))
    assert [option.name for option in manager.added_options()] == ["own-of-queue", "own-of-team", "queue", "team"]
    assert manager.option_conflicts() == ()


def test_option_of_two_plugins_is_omitted_and_reported(install_plugin):
    manager = load(install_plugin("a", option_source("the-team")), install_plugin("b", option_source("the_team")))
    assert [option.name for option in manager.added_options()] == []
    assert [conflict.name for conflict in manager.option_conflicts()] == ["own-of-the-team", "the-team"]
    assert manager.conflicts() == manager.option_conflicts()
    assert "plugin 'a' of a 1.0 and plugin 'b' of b 1.0" in str(manager.option_conflicts()[0])


def test_option_with_reserved_name_is_omitted_and_reported(install_plugin):
    points = [*install_plugin("b", option_source("Max-Restarts")), *install_plugin("a", option_source("team"))]
    manager = PluginManager.load({}, entry_points=points, reserved=RESERVED)
    assert [option.name for option in manager.added_options()] == ["own-of-Max-Restarts", "own-of-team", "team"]
    (conflict,) = manager.option_conflicts()
    assert manager.conflicts() == (conflict,)
    assert (conflict.name, [source.distribution for source in conflict.losers]) == ("max-restarts", ["b"])
    assert str(conflict).endswith("uninstall one, or block one: ELASTIC_DISABLE_PLUGINS=b")


SECRETIVE = """
    from elastic_core.plugin import Option, StoreRecord, hookimpl

    @hookimpl
    def elastic_stores():
        return [StoreRecord("safe", "a test", print, (Option("Pass-Word", str, None, "it", secret=True),))]
    """


def test_secret_options_of_records_are_known_by_name(install_plugin):
    manager = load(install_plugin("a", SECRETIVE), install_plugin("b", option_source("queue")))
    assert manager.secret_options() == {"pass_word"}
