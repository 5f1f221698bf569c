"""Notice sources run in threads of their own, and their errors affect neither the job nor other sources."""

from __future__ import annotations

import threading

import pytest
from elastic_testing import eventually

from elastic_core.errors import PluginError
from elastic_core.hooks.calls import Contexts, watching_notices
from elastic_core.hooks.manager import PluginManager
from elastic_core.interfaces.node import Notice

TEMPLATE = """
    from elastic_core.plugin import Notice, NoticeRecord, hookimpl

    def source(context, pause):
        {body}

    @hookimpl
    def elastic_notices():
        return [NoticeRecord("{name}", "for a test", source)]
    """


def installed(install_plugin, **bodies):
    points = [
        point
        for name, body in bodies.items()
        for point in install_plugin(name, TEMPLATE.format(name=name, body=body.replace("\n", "\n        ")))
    ]
    manager = PluginManager.load({}, entry_points=points)
    assert manager.failures == ()
    return manager


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("notices-")]


def test_notices_of_all_sources_arrive_until_the_end(install_plugin):
    waits = 'while pause(0.01):\n    yield Notice("a goes")'
    manager = installed(install_plugin, a=waits, b='yield Notice("b goes", 7.5)\nyield None')
    seen = []
    with watching_notices(Contexts(manager), lambda name, notice: seen.append((name, notice))):
        eventually(lambda: ("a", Notice("a goes")) in seen and ("b", None) in seen)
    assert [notice for name, notice in seen if name == "b"] == [Notice("b goes", 7.5), None]
    eventually(lambda: not threads())


@pytest.mark.parametrize("then", ['raise OSError("no route")', 'yield "now"'])
def test_broken_source_is_logged_and_its_last_notice_stays(then, install_plugin, log_lines):
    manager = installed(install_plugin, a=f'yield Notice("goes")\n{then}')
    seen = []
    with watching_notices(Contexts(manager), lambda name, notice: seen.append(notice)):
        eventually(lambda: not threads())
    assert seen == [Notice("goes")]
    (line,) = log_lines()
    assert (line["event"], line["part"]) == ("plugin failed", "notice source a")


def test_source_that_cannot_be_created_ends_the_launch(install_plugin):
    manager = installed(install_plugin, a='raise RuntimeError("no such cloud")')
    with (
        pytest.raises(PluginError, match=r"'a' of a .*no such cloud"),
        watching_notices(Contexts(manager), lambda name, notice: None),
    ):
        pass
