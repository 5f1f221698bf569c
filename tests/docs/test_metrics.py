"""The agent records exactly the metrics in the reference."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from elastic_core import metrics
from elastic_core.errors import ChildFailedError
from elastic_core.interfaces.observer import AgentFinished
from elastic_core.launch import LaunchConfig, elastic_launch
from elastic_core.observers import MetricRecorder

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "events.md").read_text().partition("\n## Metrics\n")[2]
FAIL = "import os; assert os.environ['RANK'] == '0', 'no samples'"


class Listening(metrics.MetricHandler):
    def __init__(self):
        self.names = set()

    def emit(self, metric_data):
        self.names.add(metric_data.name)


@pytest.fixture
def listening():
    handler = Listening()
    metrics.configure(handler)
    yield handler
    metrics.configure(metrics.NullMetricHandler())


def told():
    """Return the names in the table, each with the description of its value."""
    rows = re.findall(r"^\| (`.*?`) \| .* \| (.*) \|$", PAGE, re.M)
    return {name: value for names, value in rows for name in whole(re.findall("`([^`]+)`", names))}


def whole(names):
    """Complete the names that begin with a dot with the part of the first name before its last dot."""
    head = names[0].rpartition(".")[0]
    return [head + name if name.startswith(".") else name for name in names]


def of_calls():
    return {name for name, value in told().items() if value == "the same as for `@prof`"}


def of_workers():
    return {name.replace("<role>", "default") for name in told() if name not in of_calls()}


@pytest.fixture
def failed(listening, tmp_path):
    """The metrics of a real run that restarts and then fails."""
    (tmp_path / "fail.py").write_text(FAIL)
    config = LaunchConfig(1, 1, 2, role="default", max_restarts=1)
    with pytest.raises(ChildFailedError):
        elastic_launch(config, sys.executable)(str(tmp_path / "fail.py"))
    return listening


def test_failed_run_records_exactly_the_documented_metrics(failed):
    """The next test covers the metrics that a failed run does not record."""
    calls = {name for name in failed.names if not name.startswith("workers.")}
    assert {re.sub(r"\.(success|failure|duration\.ms)$", "", name) for name in calls} == of_calls()
    assert {name for name in calls if name.endswith(".duration.ms")} == {f"{name}.duration.ms" for name in of_calls()}
    assert failed.names - calls == of_workers() - {"workers.default.succeeded", "workers.default.stopped"}


@pytest.mark.parametrize("state", ["SUCCEEDED", "STOPPED"])
def test_end_of_a_run_records_the_documented_metric(listening, state):
    MetricRecorder("default", 1)(AgentFinished("job", state, "", 0))
    assert f"workers.default.{state.lower()}" in listening.names
    assert listening.names <= of_workers()
