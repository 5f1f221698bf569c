"""Records counts and durations with a handler that the program configures. The default handler drops them.

Functions and metrics have the same names as in torchelastic. Exceptions in a handler are only logged.
"""

from __future__ import annotations

import abc
import functools
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar, overload

from elastic_core.clock import SystemClock
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.log import tolerating

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_GROUP = "torchelastic"

_clock = SystemClock()


class MetricData(NamedTuple):
    """One value of a metric. `timestamp` is in seconds since the epoch."""

    timestamp: float
    group_name: str
    name: str
    value: float


class MetricHandler(abc.ABC):
    """Receives metrics. A handler is called in the thread that records the metric, and must not block it for long."""

    @abc.abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Receive one value."""


class NullMetricHandler(MetricHandler):
    """Drops all metrics. This is the default handler."""

    def emit(self, metric_data: MetricData) -> None:
        return


class ConsoleMetricHandler(MetricHandler):
    """Prints one line per value to stdout."""

    def emit(self, metric_data: MetricData) -> None:
        when, group, name, value = metric_data
        print(f"{when:.3f} {group} {name}={value}", flush=True)


_handlers: dict[str | None, MetricHandler] = {None: NullMetricHandler()}
"""The handlers by group. The default handler's key is None."""


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """Use `handler` for the metrics in `group` (default: in all groups that have no handler)."""
    _handlers[group] = handler


def put_metric(metric_name: str, metric_value: float, metric_group: str = DEFAULT_GROUP) -> None:
    """Pass one value to the group's handler. An exception in the handler is only logged."""
    getStream(metric_group).add_value(metric_name, metric_value)


class MetricStream:
    """Records the metrics of one group, for programs that record many metrics."""

    def __init__(self, group_name: str, handler: MetricHandler) -> None:
        self.group_name = group_name
        self.handler = handler

    def add_value(self, metric_name: str, metric_value: float) -> None:
        """Pass one value to the handler. An exception in the handler is only logged."""
        with tolerating("metric lost", metric=metric_name, handler=type(self.handler).__name__):
            self.handler.emit(MetricData(_clock.timestamp(), self.group_name, metric_name, metric_value))


def getStream(group: str) -> MetricStream:  # noqa: N802 - torch's name
    """Return a stream that passes the group's metrics to the group's current handler."""
    return MetricStream(group, _handlers.get(group, _handlers[None]))


class MetricsConfig:
    """The destination of metrics: `{"destination": "console"}` or `{"destination": "null"}`. If the parameters are
    empty, the destination stays unchanged."""

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params = params or {}


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Set the destination for all groups without a handler. If `cfg` is None, nothing changes.

    Raises:
        ConfigurationError: the destination is unknown.
    """
    handlers = {"null": NullMetricHandler, "console": ConsoleMetricHandler}
    destination = (cfg or MetricsConfig()).params.get("destination")
    if destination is None:
        return
    if destination not in handlers:
        message = f"expected the destination {' or '.join(handlers)}, found {destination!r}; to use another handler, "
        raise ConfigurationError(Problem("metrics_cfg", message + "call elastic_core.metrics.configure(handler)"))
    configure(handlers[destination]())


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Return the whole milliseconds since `start_time_in_seconds` (seconds since the epoch)."""
    return int((_clock.timestamp() - start_time_in_seconds) * 1000)


@overload
def prof(fn: Callable[P, T], group: str = DEFAULT_GROUP) -> Callable[P, T]: ...


@overload
def prof(fn: None = None, group: str = DEFAULT_GROUP) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def prof(
    fn: Callable[P, T] | None = None, group: str = DEFAULT_GROUP
) -> Callable[P, T] | Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function to measure each call. Use `@prof` or `@prof(group="...")`.

    Each call records `<name>.success` or `<name>.failure` (with the value 1), and then `<name>.duration.ms` (whole
    milliseconds). A method is named `Class.method`. A function is named `module.function`, with only the last part of
    the module's name.
    """
    if fn is None:
        return lambda function: _measured(function, _metric_name(function), group)
    return _measured(fn, _metric_name(fn), group)


def prof_as(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function as `prof` does, but record its calls under a different name."""
    return lambda function: _measured(function, name, DEFAULT_GROUP)


def _measured(function: Callable[P, T], name: str, group: str) -> Callable[P, T]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        start, outcome = _clock.now(), "failure"
        try:
            result = function(*args, **kwargs)
            outcome = "success"
        finally:
            elapsed = _clock.now() - start
            put_metric(f"{name}.{outcome}", 1, group)
            put_metric(f"{name}.duration.ms", int(elapsed * 1000), group)
        return result

    return call


def _metric_name(function: Callable[..., object]) -> str:
    qualified: str = function.__qualname__
    module = (function.__module__ or "").rpartition(".")[2]
    return f"{module}.{qualified}" if module and "." not in qualified else qualified
