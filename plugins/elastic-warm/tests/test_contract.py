"""The starter `warm` passes StarterContract with and without a template."""

from __future__ import annotations

import os
import sys

import pytest
from elastic_testing import StarterContract, eventually
from elastic_warm.learned_imports import LearnedImports
from elastic_warm.starter import cache_file

from elastic_core.hooks.manager import PluginManager
from elastic_core.hooks.records import Context
from elastic_core.interfaces.workers import Launch, Work
from elastic_core.plugin import WorkerStarterRecord

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="warm start is for Linux"),
]


@pytest.fixture
def warm_starter_for(tmp_path):
    """A function that makes a `warm` starter with the given options; all are closed at the end."""
    made = []

    def starter_for(command, **options):
        record = PluginManager.load(os.environ).select(WorkerStarterRecord, "warm")
        values = {option.name: option.default for option in record.options}
        made.append(record.factory(Context(options={**values, **options}), Work(command)))
        return made[-1]

    yield starter_for
    for starter in made:
        close = getattr(starter, "close", lambda: None)
        close()
        close()


class TestWarmWithoutTemplate(StarterContract):
    @pytest.fixture
    def starter_for(self, warm_starter_for):
        return warm_starter_for


class TestWarm(StarterContract):
    """With a template that starts before the first worker, thanks to cached imports."""

    @pytest.fixture
    def starter_for(self, warm_starter_for, tmp_path):
        def starter_for(command):
            file = cache_file(Work(command), str(tmp_path / "cache"))
            if file is None:
                return warm_starter_for(command)
            learned = LearnedImports({"colorsys": ""}, seconds=30)
            file.parent.mkdir(exist_ok=True)
            file.write_text(learned.as_json({}, (), ["contract", "contract_mark", "contract_of_the_agent"]))
            return warm_starter_for(command, cache=str(tmp_path / "cache"))

        return starter_for

    def test_worker_starts_warm(self, starter_for, tmp_path):
        starter = starter_for((sys.executable, "-c", "import sys; sys.exit(4 if 'colorsys' in sys.modules else 3)"))
        variables = dict(os.environ)
        starter.prepare(variables, frozenset())
        with (tmp_path / "mark").open("w") as mark:
            child = starter.start(Launch(0, variables, None, None, tmp_path / "result", mark.fileno()))
        eventually(lambda: child.poll() is not None, timeout=60)
        assert child.poll() == 4
        assert starter.template_pid is not None
