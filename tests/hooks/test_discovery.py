from __future__ import annotations

import importlib.metadata

import pytest

from elastic_core.hooks.discovery import (
    Candidate,
    InvalidPlugin,
    Source,
    allowed_names,
    blocked_names,
    candidates,
    described_error,
    failure_of,
    installed_entry_points,
    with_builtins,
)
from elastic_core.hooks.manager import PluginManager

LOCAL = importlib.metadata.EntryPoint("local", "some_package.local", "elastic")


def test_both_groups_of_installed_distributions_are_found(install):
    install("dist-a", {"elastic": ["a = mod_a"], "torchrun.handlers": ["b = mod_b:f"], "console_scripts": ["c = m:f"]})
    points, failures = installed_entry_points()
    ours = [point for point in points if point.dist.name == "dist-a"]
    assert [(point.group, point.name) for point in ours] == [("elastic", "a"), ("torchrun.handlers", "b")]
    assert not [failure for failure in failures if failure.source.distribution == "dist-a"]


def test_the_first_of_two_copies_on_the_path_counts(install):
    install("dist-a", {"elastic": ["a = mod_a"]}, version="1.0")
    install("dist-a", {"elastic": ["a = mod_a"]}, version="2.0")  # put before the other on sys.path
    points, _ = installed_entry_points()
    assert [point.dist.version for point in points if point.dist.name == "dist-a"] == ["2.0"]


def test_a_broken_entry_points_file_is_recorded_and_disturbs_nobody(put_on_path):
    put_on_path("broken-dist", {"elastic": ["no equals sign"]})
    put_on_path("good-dist", {"elastic": ["a = mod_a"]})
    points, failures = installed_entry_points()
    assert "good-dist" in [point.dist.name for point in points]
    assert "broken-dist" in [failure.source.distribution for failure in failures]


def test_candidates_carry_distribution_and_version_and_import_nothing(install):
    points = install("dist-b", {"elastic": ["z = absent_module", "a = absent_module:thing"]}, version="3.1")
    found = candidates(points, "elastic")
    assert [candidate.source for candidate in found] == [Source("dist-b", "a", "3.1"), Source("dist-b", "z", "3.1")]
    assert [candidate.target for candidate in found] == ["absent_module:thing", "absent_module"]


def test_an_entry_point_without_distribution_says_so():
    (found,) = candidates([LOCAL], "elastic")
    assert str(found.source) == "(unknown distribution) (unknown version)"


def test_builtins_count_only_when_no_entry_point_brings_them():
    found = candidates([LOCAL], "elastic")
    assert with_builtins(found, ["some_package.local"]) == found
    extra = [candidate for candidate in with_builtins(found, ["other_package.local"]) if candidate not in found]
    assert [(item.source.distribution, item.source.plugin) for item in extra] == [("elastic-core", "local")]


def test_block_list_takes_distributions_and_plugins_in_any_spelling():
    names = blocked_names({"ELASTIC_DISABLE_PLUGINS": "Elastic_Etcd, wandb ,,ghost"})
    etcd, wandb = Source("elastic-etcd", "etcd", "1"), Source("some-tools", "wandb", "1")
    other = Source("elastic-c10d", "c10d", "1")
    manager = PluginManager([Candidate(source, "", object) for source in (etcd, wandb, other)], blocked=names)
    assert manager.blocked == {etcd: "ELASTIC_DISABLE_PLUGINS", wandb: "ELASTIC_DISABLE_PLUGINS"}
    assert [plugin.source for plugin in manager.plugins] == [other]
    assert manager.unknown_blocks == ("ghost",)


def test_a_plugin_is_blocked_alone_where_its_name_is_that_of_another_distribution():
    ours, stranger = Source("elastic-c10d", "c10d", "1"), Source("c10d", "backend", "1")
    names = blocked_names({"ELASTIC_DISABLE_PLUGINS": "C10D:backend"})
    manager = PluginManager([Candidate(source, "", object) for source in (ours, stranger)], blocked=names)
    assert (list(manager.blocked), manager.unknown_blocks) == ([stranger], ())


@pytest.mark.parametrize("spelt", ["elastic-etcd, Some.Tools", "elastic_etcd,,some-tools,elastic-etcd"])
def test_only_distributions_of_the_list_are_allowed_and_the_core(spelt):
    core, etcd, wandb = (
        Source("elastic-core", "local", "1"),
        Source("elastic-etcd", "etcd", "1"),
        Source("some-tools", "wandb", "1"),
    )
    other = Source("elastic-c10d", "etcd", "1")
    names = allowed_names({"ELASTIC_PLUGINS": spelt})
    manager = PluginManager([Candidate(source, "", object) for source in (core, etcd, wandb, other)], allowed=names)
    assert manager.blocked == {other: "--plugins"}
    assert manager.unknown_allowed == ()


def test_who_blocks_and_allows_a_distribution_blocks_it():
    etcd = Source("elastic-etcd", "etcd", "1")
    manager = PluginManager([Candidate(etcd, "", object)], blocked=["etcd"], allowed=["elastic-etcd"])
    assert manager.blocked == {etcd: "ELASTIC_DISABLE_PLUGINS"}


def test_the_name_of_a_plugin_is_none_of_a_distribution():
    manager = PluginManager(
        [Candidate(Source("elastic-etcd", "etcd", "1"), "", object)], allowed=["elastic-etc", "etcd"]
    )
    assert manager.unknown_allowed == ("elastic-etc", "etcd")
    assert manager.about_unknown_allowed()[0].endswith("found 'elastic-etc'; did you mean 'elastic-etcd'?")


def test_an_empty_variable_allows_all():
    assert allowed_names({}) is allowed_names({"ELASTIC_PLUGINS": " , "}) is None


def test_an_empty_variable_blocks_nothing():
    assert blocked_names({}) == blocked_names({"ELASTIC_DISABLE_PLUGINS": " , "}) == []


def test_failure_names_plugin_distribution_both_versions_and_the_reason():
    failure = failure_of(Source("elastic-etcd", "etcd", "0.3"), ImportError("no module\nnamed grpc"))
    assert str(failure).startswith("plugin 'etcd' of elastic-etcd 0.3, under elastic-core ")
    assert str(failure).endswith(": ImportError: no module named grpc")
    assert "ImportError" in failure.traceback


def test_reasons_in_one_line():
    assert described_error(SystemExit()) == "SystemExit"
    assert failure_of(Source("d", "p", "1"), InvalidPlugin("not a plugin")).reason == "not a plugin"


def test_a_distribution_without_metadata_still_brings_its_plugins(put_on_path):
    folder = put_on_path("nameless-dist", {"elastic": ["nameless = mod_a"]})
    for file in folder.glob("*.dist-info/METADATA"):
        file.write_text("")
    points, _ = installed_entry_points()
    sources = [candidate.source for candidate in candidates(points, "elastic")]
    assert Source("(unknown distribution)", "nameless", "(unknown version)") in sources
