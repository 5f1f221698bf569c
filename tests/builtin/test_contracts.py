"""The core's own plugin fulfils the contracts for third-party plugins."""

from __future__ import annotations

import json

import pytest
from elastic_testing import EventHandlerContract, RankPolicyContract, StarterContract

from elastic_core.errors import ConfigurationError
from elastic_core.events import is_known, open_handler, register_handler
from elastic_core.hooks.manager import PluginManager
from elastic_core.hooks.records import Context
from elastic_core.interfaces.node import Candidate, Node
from elastic_core.interfaces.workers import Work
from elastic_core.plugin import RankPolicyRecord, WorkerStarterRecord

pytestmark = pytest.mark.integration


def select(kind, name):
    return PluginManager.load({}).select(kind, name)


class TestSubprocess(StarterContract):
    @pytest.fixture
    def starter_for(self):
        return lambda command: select(WorkerStarterRecord, "subprocess").factory(Context(), Work(command))


@pytest.mark.parametrize("name", ["spawn", "fork", "forkserver"])
def test_functions_are_not_commands(name):
    with pytest.raises(
        ConfigurationError, match=r"expected a function to run, found a script or a command; use subpro"
    ):
        select(WorkerStarterRecord, name).factory(Context(), Work(("true",)))
    with pytest.raises(ConfigurationError, match=r"expected a script or a command to run, found a function; use spawn"):
        select(WorkerStarterRecord, "subprocess").factory(Context(), Work(function=print))


class TestKeep(RankPolicyContract):
    @pytest.fixture
    def policy(self):
        return select(RankPolicyRecord, "keep").factory(Context())


class TestHost(RankPolicyContract):
    @pytest.fixture
    def policy(self):
        return select(RankPolicyRecord, "host").factory(Context())

    def test_neighbours_get_adjacent_ranks(self, policy):
        hosts = ["node66", "rack2-9", "node7", "rack2-10", "rack1-3"]
        found = policy([Candidate(Node(host, host), rank) for rank, host in enumerate(hosts)])
        assert [it.node.host for it in found] == ["node7", "node66", "rack1-3", "rack2-9", "rack2-10"]


class TestFile(EventHandlerContract):
    @pytest.fixture
    def handler(self, tmp_path):
        self.path = tmp_path / "events.jsonl"
        return open_handler(f"file:{self.path}")

    def recorded(self, handler):
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def test_unwritable_file_is_rejected(self):
        with pytest.raises(ConfigurationError, match=r"--event-log-handler: cannot write to the file '/no/such/file'"):
            open_handler("file:/no/such/file")


class TestConsole(EventHandlerContract):
    @pytest.fixture
    def handler(self, capsys):
        self.told = ""
        self.capsys = capsys
        return open_handler("console")

    def recorded(self, handler):
        self.told += self.capsys.readouterr().err
        return [json.loads(line) for line in self.told.splitlines()]


def test_only_valid_handler_names_are_known():
    register_handler("registered here", print)
    names = ("null", "console", "registered here", "file:x", "file:", "file", "other")
    assert [name for name in names if is_known(name)] == ["null", "console", "registered here", "file:x"]
