"""The hooks' examples fulfill the contracts of their interfaces."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from elastic_testing import (
    CommandContract,
    HealthCheckContract,
    NoticeContract,
    NotificationContract,
    RankPolicyContract,
    StarterContract,
)
from elastic_testing.notifications import smallest_facts
from hook_examples import example_of

from elastic_core.errors import ConfigurationError
from elastic_core.hooks.manager import PluginManager
from elastic_core.hooks.records import Context
from elastic_core.interfaces.node import Candidate, Node
from elastic_core.interfaces.workers import Work
from elastic_core.plugin import HealthCheckRecord, NoticeRecord, RankPolicyRecord, WorkerStarterRecord

pytestmark = pytest.mark.integration


@pytest.fixture
def selected(install_plugin):
    def selected(hook, record, name):
        points = install_plugin("example", example_of(hook))
        return PluginManager.load({}, entry_points=points).select(record, name)

    return selected


class TestNice(StarterContract):
    @pytest.fixture
    def starter_for(self, selected):
        factory = selected("elastic_worker_starters", WorkerStarterRecord, "nice").factory
        return lambda command: factory(Context(options={"level": 1}), Work(command))

    def test_function_as_starter_is_rejected(self, selected):
        with pytest.raises(ConfigurationError, match="cannot run a function; give a command"):
            selected("elastic_worker_starters", WorkerStarterRecord, "nice").factory(
                Context(options={"level": 1}), Work(function=print)
            )


class TestLargestFirst(RankPolicyContract):
    @pytest.fixture
    def policy(self, selected):
        return selected("elastic_rank_policies", RankPolicyRecord, "largest-first").factory(Context())

    def test_largest_nodes_are_first(self, policy):
        given = [Candidate(Node(str(size), local_world_size=size), None) for size in (1, 8, 2)]
        assert [it.node.local_world_size for it in policy(given)] == [8, 2, 1]


class TestData(HealthCheckContract):
    @pytest.fixture
    def check(self, selected):
        record = selected("elastic_health_checks", HealthCheckRecord, "data")
        return lambda: record.factory(Context())


class TestMaintenance(NoticeContract):
    @pytest.fixture
    def file(self, tmp_path):
        return tmp_path / "maintenance"

    @pytest.fixture
    def source(self, file, install_plugin):
        points = install_plugin("example", example_of("elastic_notices").replace("/run/maintenance", str(file)))
        record = PluginManager.load({}, entry_points=points).select(NoticeRecord, "maintenance")
        return lambda pause: record.factory(Context(), pause)

    @pytest.fixture
    def announce(self, file):
        return file.touch

    @pytest.fixture
    def withdraw(self, file):
        return file.unlink


class TestForget(CommandContract):
    @pytest.fixture
    def words(self, put_on_path):
        source = example_of("elastic_commands")
        put_on_path("example", {"elastic": ["example = example_plugin"]}, {"example_plugin": source})
        return ["forget", "job7", "--really"]


class TestNotified(NotificationContract):
    @pytest.fixture(params=smallest_facts())
    def plugin(self, request):
        namespace = {}
        exec(example_of(request.param), namespace)
        return SimpleNamespace(**namespace)
