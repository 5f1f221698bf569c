"""What comes with the core keeps the contracts that strangers' plugins keep."""

from __future__ import annotations

import json
import sys

import pytest
from elastic_testing import EventSinkContract, RankPolicyContract, StarterContract

from elastic_core.errors import ConfigurationError
from elastic_core.events import HANDLERS
from elastic_core.hooks import EventSinkRecord, RankPolicyRecord, WorkerStarterRecord
from elastic_core.hooks.manager import PluginManager
from elastic_core.interfaces.node import Candidate, Node
from elastic_core.interfaces.workers import Work
from elastic_core.workers.warm.learned import Learned
from elastic_core.workers.warm.starter import cache_file

pytestmark = pytest.mark.integration

linux = pytest.mark.skipif(sys.platform != "linux", reason="warm start is for Linux")


def select(kind, name):
    return PluginManager.load({}).select(kind, name)


class TestSubprocess(StarterContract):
    @pytest.fixture
    def starter_for(self):
        return lambda command: select(WorkerStarterRecord, "subprocess").factory(Work(command), {})


@pytest.fixture
def warm_starter_for(tmp_path):
    """A function that makes the starter `warm`, which gets its options; it is closed at the end."""
    made = []

    def starter_for(command, **options):
        record = select(WorkerStarterRecord, "warm")
        values = {option.name: option.default for option in record.options}
        made.append(record.factory(Work(command), {**values, **options}))
        return made[-1]

    yield starter_for
    for starter in made:
        close = getattr(starter, "close", lambda: None)
        close()
        close()


@linux
class TestWarmWithoutATemplate(StarterContract):
    @pytest.fixture
    def starter_for(self, warm_starter_for):
        return warm_starter_for


@linux
class TestWarm(StarterContract):
    """From a template that is there before the first worker, by what an earlier run has kept."""

    @pytest.fixture
    def starter_for(self, warm_starter_for, tmp_path):
        def starter_for(command):
            file = cache_file(Work(command), str(tmp_path / "cache"))
            if file is None:
                return warm_starter_for(command)
            learned = Learned({"colorsys": ""}, seconds=30)
            file.parent.mkdir(exist_ok=True)
            file.write_text(learned.as_json({}, (), ["contract", "contract_mark", "contract_of_the_agent"]))
            return warm_starter_for(command, cache=str(tmp_path / "cache"))

        return starter_for

    def test_it_is_warm(self, starter_for, tmp_path):
        starter = starter_for(self._python("import sys; sys.exit(4 if 'colorsys' in sys.modules else 3)"))
        assert self._ended(self._start(starter, tmp_path, None, None)) == 4
        assert starter.template_pid is not None


@pytest.mark.parametrize("name", ["spawn", "fork", "forkserver"])
def test_functions_are_not_commands(name):
    with pytest.raises(
        ConfigurationError, match=r"expected a function to run, found a script or a command; use subpro"
    ):
        select(WorkerStarterRecord, name).factory(Work(("true",)), {})
    with pytest.raises(ConfigurationError, match=r"expected a script or a command to run, found a function; use spawn"):
        select(WorkerStarterRecord, "subprocess").factory(Work(function=print), {})


class TestKeep(RankPolicyContract):
    @pytest.fixture
    def policy(self):
        return select(RankPolicyRecord, "keep").factory({})


class TestHost(RankPolicyContract):
    @pytest.fixture
    def policy(self):
        return select(RankPolicyRecord, "host").factory({})

    def test_neighbours_are_neighbours(self, policy):
        hosts = ["node66", "rack2-9", "node7", "rack2-10", "rack1-3"]
        found = policy([Candidate(Node(host, host), rank) for rank, host in enumerate(hosts)])
        assert [it.node.host for it in found] == ["node7", "node66", "rack1-3", "rack2-9", "rack2-10"]


class TestFile(EventSinkContract):
    @pytest.fixture
    def sink(self, tmp_path):
        self.path = tmp_path / "events.jsonl"
        return select(EventSinkRecord, "file").factory({"path": str(self.path)})

    def recorded(self, sink):
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def test_a_file_that_cannot_be_written(self):
        with pytest.raises(ConfigurationError, match=r"--event-log-conf: path: expected a file .* '/no/such/file'"):
            select(EventSinkRecord, "file").factory({"path": "/no/such/file"})


class TestConsole(EventSinkContract):
    @pytest.fixture
    def sink(self, capsys):
        self.told = ""
        self.capsys = capsys
        return select(EventSinkRecord, "console").factory({})

    def recorded(self, sink):
        self.told += self.capsys.readouterr().err
        return [json.loads(line) for line in self.told.splitlines()]


def test_null_is_nowhere():
    assert select(EventSinkRecord, "null").factory({}) is HANDLERS["null"]
