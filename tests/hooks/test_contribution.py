from __future__ import annotations

import pytest

from elastic_core.hooks.calls import Contexts, contributed_environment
from elastic_core.hooks.manager import PluginManager


@pytest.fixture
def contributed(install_plugin, log_lines, plan):
    """A function that installs plugins with the given bodies, and returns their contributions and the log lines."""

    def contributed(**bodies):
        points = []
        for name, body in bodies.items():
            source = (
                f"from elastic_core.plugin import hookimpl\n@hookimpl\ndef elastic_contribute_environment(plan): {body}"
            )
            points += install_plugin(name, source)
        manager = PluginManager.load({}, entry_points=points)
        assert manager.failures == ()
        return contributed_environment(plan, Contexts(manager)), log_lines()

    return contributed


def test_contributions_are_merged(contributed):
    merged, lines = contributed(a="return {'A': str(plan.round)}", b="return {'B': plan.run_id}", c="return None")
    assert merged == {"A": "4", "B": "job"}
    assert lines == []


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise RuntimeError('no token')", "RuntimeError: no token"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("return ['A']", "expected a mapping of variables, found an object of type list"),
        ("return {'A': 1}", "a variable and its value must be strings; found 'A'=1"),
        ("return {'A=B': ''}", "expected a valid variable, found 'A=B'; the name must not"),
        ("return {'A': chr(0)}", "expected a valid variable, found 'A'; the name must not"),
        ("return {'A': chr(0xD800)}", "UnicodeEncodeError: "),
    ],
)
def test_bad_contribution_is_logged_and_others_are_used(contributed, body, error):
    merged, (line,) = contributed(bad=body, good="return {'G': '1'}")
    assert merged == {"G": "1"}
    assert line["event"] == "plugin failed"
    assert (line["plugin"], line["distribution"], line["version"]) == ("bad", "bad", "1.0")
    assert error in line["reason"]


def test_conflicting_values_are_logged_and_the_first_is_used(contributed):
    merged, (line,) = contributed(b="return {'X': 'b', 'Y': 'b'}", a="return {'X': 'a'}")
    assert merged == {"X": "a", "Y": "b"}
    assert (line["plugin"], line["variable"]) == ("b", "X")
    assert "plugin 'a' of a 1.0 sets X" in line["reason"]


def test_equal_values_do_not_conflict(contributed):
    assert contributed(a="return {'X': '1'}", b="return {'X': '1'}") == ({"X": "1"}, [])
