from __future__ import annotations

import sys

import pytest

from elastic_core.config import settings_from
from elastic_core.hooks.calls import Contexts, notifier
from elastic_core.hooks.manager import PluginManager
from elastic_core.interfaces.node import Round
from elastic_core.interfaces.observer import AgentFinished, Observer, RoundFormed

SEES = """
    from elastic_core.plugin import hookimpl
    seen = []

    @hookimpl
    def elastic_round_formed(fact):
        seen.append(fact)

    @hookimpl
    def elastic_agent_finished():
        seen.append("finished")
    """
RAISES = """
    import asyncio
    from elastic_core.plugin import hookimpl

    @hookimpl
    def elastic_round_formed(fact):
        raise RuntimeError(f"cannot bear round {fact.round}")

    @hookimpl
    def elastic_agent_finished(fact):
        raise SystemExit(1)
    """
FORMED = RoundFormed("job", 1, 0, 2, 0.5, Round(1, ()))


def notifier_for(*points) -> Observer:
    manager = PluginManager.load({}, entry_points=[point for some in points for point in some])
    assert manager.failures == ()
    return notifier(Contexts(manager))


def test_facts_reach_all_implementations_of_their_hook(install_plugin):
    notify = notifier_for(install_plugin("eyes", SEES))
    notify(FORMED)
    notify(AgentFinished("job", "SUCCEEDED", "", 0))
    assert sys.modules["eyes_plugin"].seen == [FORMED, "finished"]


def test_observer_error_is_logged_and_others_are_notified(install_plugin, log_lines):
    notify = notifier_for(
        install_plugin("a-eyes", SEES),
        install_plugin("b-raises", RAISES, version="2.5"),
        install_plugin("c-eyes", SEES),
    )
    notify(FORMED)
    assert sys.modules["a_eyes_plugin"].seen == sys.modules["c_eyes_plugin"].seen == [FORMED]
    (line,) = log_lines()
    assert (line["event"], line["part"]) == ("plugin failed", "elastic_round_formed")
    assert (line["plugin"], line["distribution"], line["version"]) == ("b-raises", "b-raises", "2.5")
    assert line["reason"] == "it raised RuntimeError: cannot bear round 1"
    assert "Traceback" in line["exception"]


@pytest.mark.parametrize("error", ["SystemExit", "asyncio.CancelledError"])
def test_observer_cannot_end_the_agent(install_plugin, log_lines, error):
    notifier_for(install_plugin("b-raises", RAISES.replace("SystemExit", error)))(AgentFinished("job", "FAILED", "", 0))
    assert [line["reason"] for line in log_lines()] == [f"it raised {error.removeprefix('asyncio.')}: 1"]


LOGS = """
    from elastic_core.plugin import Option, hookimpl

    @hookimpl
    def elastic_add_options():
        return [Option("pager", str, None, "who is called")]

    @hookimpl
    def elastic_round_formed(fact, context):
        context.log.info("pager called", who=context.options["pager"], job=context.run_id, options=len(context.options))
    """
OTHER = """
    from elastic_core.plugin import Option, hookimpl

    @hookimpl
    def elastic_add_options():
        return [Option("team", str, None, "who pays")]
    """


def test_context_has_only_its_plugins_options(install_plugin, log_lines):
    points = [*install_plugin("pager", LOGS), *install_plugin("team", OTHER)]
    manager = PluginManager.load({}, entry_points=points)
    settings = settings_from({"rdzv_backend": "local", "rdzv_id": "job"})
    notifier(Contexts(manager, settings, {"pager": "ops", "team": "vision"}))(FORMED)
    (line,) = log_lines()
    names = ("event", "plugin", "who", "job", "options")
    assert [line[name] for name in names] == ["pager called", "pager", "ops", "job", 1]


def test_context_repr_hides_options(install_plugin):
    manager = PluginManager.load({}, entry_points=install_plugin("pager", LOGS))
    conf = {"rdzv_conf": {"password": "s3cret"}, "rdzv_backend": "local", "rdzv_id": "job"}
    (plugin,) = manager.plugins
    context = Contexts(manager, settings_from(conf), {"pager": "t0ken"}).of(plugin.source)
    assert context.settings["rdzv_backend"] == "local"
    assert "s3cret" not in str(dict(context.settings))
    assert "t0ken" not in repr(context)
    with pytest.raises(TypeError):
        context.settings["rdzv_backend"] = "c10d"
