from __future__ import annotations

import importlib.metadata

import pytest

from elastic_core.errors import InvalidPlugin, described_error
from elastic_core.hooks.discovery import (
    CORE,
    Candidate,
    Source,
    candidates,
    failure_of,
    installed_entry_points,
    listed_names,
)
from elastic_core.hooks.manager import PluginManager


def test_both_groups_of_installed_distributions_are_found(install):
    install("dist-a", {"elastic": ["a = mod_a"], "torchrun.handlers": ["b = mod_b:f"], "console_scripts": ["c = m:f"]})
    points, failures = installed_entry_points()
    ours = [point for point in points if point.dist.name == "dist-a"]
    assert [(point.group, point.name) for point in ours] == [("elastic", "a"), ("torchrun.handlers", "b")]
    assert not [failure for failure in failures if failure.source.distribution == "dist-a"]


def test_first_of_two_copies_on_the_path_is_used(install):
    install("dist-a", {"elastic": ["a = mod_a"]}, version="1.0")
    install("dist-a", {"elastic": ["a = mod_a"]}, version="2.0")  # put before the other on sys.path
    points, _ = installed_entry_points()
    assert [point.dist.version for point in points if point.dist.name == "dist-a"] == ["2.0"]


def test_broken_entry_points_file_is_recorded(put_on_path):
    put_on_path("broken-dist", {"elastic": ["no equals sign"]})
    put_on_path("good-dist", {"elastic": ["a = mod_a"]})
    points, failures = installed_entry_points()
    assert "good-dist" in [point.dist.name for point in points]
    assert "broken-dist" in [failure.source.distribution for failure in failures]


def test_candidates_have_distribution_and_version_without_import(install):
    points = install("dist-b", {"elastic": ["z = absent_module", "a = absent_module:thing"]}, version="3.1")
    found = candidates(points, "elastic")
    assert [candidate.source for candidate in found] == [Source("dist-b", "a", "3.1"), Source("dist-b", "z", "3.1")]
    assert [candidate.target for candidate in found] == ["absent_module:thing", "absent_module"]


def of_core():
    points, _ = installed_entry_points()
    sources = [candidate.source for candidate in candidates(points, "elastic")]
    return [source.plugin for source in sources if source.distribution == CORE]


def test_core_plugin_is_found_once():
    assert of_core() == ["builtin"]


def test_core_plugin_is_found_in_a_checkout(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "distributions", list)
    assert of_core() == ["builtin"]


def test_block_list_accepts_any_spelling():
    names = listed_names({"X": "Elastic_Etcd, wandb ,,ghost"}, "X")
    etcd, wandb = Source("elastic-etcd", "etcd", "1"), Source("some-tools", "wandb", "1")
    other = Source("elastic-c10d", "c10d", "1")
    manager = PluginManager([Candidate(source, "", object) for source in (etcd, wandb, other)], blocked=names)
    assert manager.blocked == {etcd: "ELASTIC_DISABLE_PLUGINS", wandb: "ELASTIC_DISABLE_PLUGINS"}
    assert [plugin.source for plugin in manager.plugins] == [other]
    assert manager.unknown_blocks == ("ghost",)


def test_blocking_a_plugin_spares_distribution_of_same_name():
    ours, third_party = Source("elastic-c10d", "c10d", "1"), Source("c10d", "backend", "1")
    candidates = [Candidate(source, "", object) for source in (ours, third_party)]
    manager = PluginManager(candidates, blocked=["C10D:backend"])
    assert (list(manager.blocked), manager.unknown_blocks) == ([third_party], ())


@pytest.mark.parametrize("spelt", ["elastic-etcd, Some.Tools", "elastic_etcd,,some-tools,elastic-etcd"])
def test_allow_list_limits_loading_to_its_names_and_the_core(spelt):
    core, etcd, wandb = (
        Source("elastic-core", "local", "1"),
        Source("elastic-etcd", "etcd", "1"),
        Source("some-tools", "wandb", "1"),
    )
    other = Source("elastic-c10d", "etcd", "1")
    names = listed_names({"ELASTIC_PLUGINS": spelt}, "ELASTIC_PLUGINS")
    manager = PluginManager([Candidate(source, "", object) for source in (core, etcd, wandb, other)], allowed=names)
    assert manager.blocked == {other: "--plugins"}
    assert manager.unknown_allowed == ()


def test_block_list_overrides_allow_list():
    etcd = Source("elastic-etcd", "etcd", "1")
    manager = PluginManager([Candidate(etcd, "", object)], blocked=["etcd"], allowed=["elastic-etcd"])
    assert manager.blocked == {etcd: "ELASTIC_DISABLE_PLUGINS"}


def test_allow_list_rejects_plugin_names():
    manager = PluginManager(
        [Candidate(Source("elastic-etcd", "etcd", "1"), "", object)], allowed=["elastic-etc", "etcd"]
    )
    assert manager.unknown_allowed == ("elastic-etc", "etcd")
    assert manager.about_unknown_allowed()[0].endswith("named 'elastic-etc'; did you mean 'elastic-etcd'?")


def test_empty_variables_allow_all_and_block_nothing():
    manager = PluginManager.load({"ELASTIC_PLUGINS": " , ", "ELASTIC_DISABLE_PLUGINS": " , "}, entry_points=[])
    assert (manager.allowed, manager.unknown_blocks) == (None, ())


def test_failure_names_plugin_versions_and_reason():
    failure = failure_of(Source("elastic-etcd", "etcd", "0.3"), ImportError("no module\nnamed grpc"))
    assert str(failure).startswith("plugin 'etcd' of elastic-etcd 0.3, under elastic-core ")
    assert str(failure).endswith(": ImportError: no module named grpc")
    assert "ImportError" in failure.traceback


def test_reason_is_a_single_line():
    assert described_error(SystemExit()) == "SystemExit"
    assert failure_of(Source("d", "p", "1"), InvalidPlugin("not a plugin")).reason == "not a plugin"


def test_distribution_without_metadata_provides_plugins(put_on_path):
    folder = put_on_path("nameless-dist", {"elastic": ["nameless = mod_a"]})
    for file in folder.glob("*.dist-info/METADATA"):
        file.write_text("")
    points, _ = installed_entry_points()
    sources = [candidate.source for candidate in candidates(points, "elastic")]
    assert Source("(unknown distribution)", "nameless", "(unknown version)") in sources
