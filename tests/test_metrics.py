from __future__ import annotations

import io
import json
import time
import uuid

import pytest

from elastic_core import log, metrics


class Collector(metrics.MetricHandler):
    def __init__(self):
        self.data = []

    def emit(self, metric_data):
        self.data.append(metric_data)

    def values(self):
        return [(data.name, data.value) for data in self.data]


@pytest.fixture
def group():
    return f"group-{uuid.uuid4()}"


@pytest.fixture
def collector(group):
    handler = Collector()
    metrics.configure(handler, group)
    return handler


@pytest.fixture
def default_collector():
    handler = Collector()
    metrics.configure(handler)
    yield handler
    metrics.configure(metrics.NullMetricHandler())


def test_value_reaches_the_handler_with_time_and_group(default_collector):
    metrics.put_metric("restarts", 2)
    (data,) = default_collector.data
    assert (data.group_name, data.name, data.value) == ("torchelastic", "restarts", 2)
    assert data.timestamp > 1_600_000_000


def test_group_may_have_its_own_handler(default_collector, collector, group):
    metrics.put_metric("a", 1, group)
    metrics.put_metric("b", 1, "another group")
    assert collector.values() == [("a", 1)]
    assert default_collector.values() == [("b", 1)]


@metrics.prof
def double(x, *, by=2):
    """Doubles."""
    return x * by


def test_bare_decorator_measures_a_function(default_collector):
    assert double(3, by=4) == 12
    assert double.__doc__ == "Doubles."
    name = f"{__name__.rpartition('.')[2]}.double"
    assert [name for name, _ in default_collector.values()] == [f"{name}.success", f"{name}.duration.ms"]


def test_decorator_with_group_measures_methods_and_failures(collector, group):
    class Agent:
        @metrics.prof(group=group)
        def run(self):
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        Agent().run()
    (failure, count), (duration, milliseconds) = collector.values()
    assert failure.endswith("Agent.run.failure")
    assert count == 1
    assert duration.endswith("Agent.run.duration.ms")
    assert isinstance(milliseconds, int)


def test_handler_error_is_logged_and_not_raised(group):
    class Broken(metrics.MetricHandler):
        def emit(self, metric_data):
            raise OSError("full")

    stream = io.StringIO()
    log.configure(format="json", stream=stream)
    metrics.configure(Broken(), group)
    metrics.put_metric("a", 1, group)
    log.configure(level="warning")
    line = json.loads(stream.getvalue())
    assert (line["event"], line["metric"], line["handler"]) == ("metric lost", "a", "Broken")


def test_console_handler_prints_a_line(capsys):
    metrics.ConsoleMetricHandler().emit(metrics.MetricData(1.5, "agent", "restarts", 2))
    assert capsys.readouterr().out == "1.500 agent restarts=2\n"


def test_stream_belongs_to_its_group(collector, group):
    metrics.getStream(group).add_value("loss", 3)
    assert collector.values() == [("loss", 3)]
    assert collector.data[0].group_name == group


def test_elapsed_time_is_in_milliseconds():
    assert 0 <= metrics.get_elapsed_time_ms(time.time()) < 60_000


def test_metrics_config_selects_the_handler(capsys):
    try:
        metrics.initialize_metrics(metrics.MetricsConfig({"destination": "console"}))
        metrics.put_metric("loss", 3)
        metrics.initialize_metrics()
        metrics.put_metric("loss", 4)
        metrics.initialize_metrics(metrics.MetricsConfig({"destination": "null"}))
        metrics.put_metric("loss", 5)
    finally:
        metrics.configure(metrics.NullMetricHandler())
    printed = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["loss=3", "loss=4"]
