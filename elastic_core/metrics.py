"""Counts and durations, given to a handler that the user configures; the default handler drops them.

`put_metric`, `prof`, `configure` and the names of the metrics are those of torchelastic. The error of a handler is
logged and never fatal.
"""

from __future__ import annotations

import abc
import functools
import sys
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TextIO, TypeVar, overload

from elastic_core.clock import SystemClock
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Instant

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_GROUP = "torchelastic"

_log = get_logger()
_clock = SystemClock()


class MetricData(NamedTuple):
    """One value. `timestamp` is in seconds since the epoch."""

    timestamp: float
    group_name: str
    name: str
    value: float


class MetricHandler(abc.ABC):
    """Receives metrics, in the thread that measures; it should return soon."""

    @abc.abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Receive one value."""


class NullMetricHandler(MetricHandler):
    """Drops everything: the default."""

    def emit(self, metric_data: MetricData) -> None:
        return


class ConsoleMetricHandler(MetricHandler):
    """Prints one line per value, to `stream` or, when that is None, to stdout."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def emit(self, metric_data: MetricData) -> None:
        when, group, name, value = metric_data
        print(f"{when:.3f} {group} {name}={value}", file=self._stream or sys.stdout, flush=True)


_handlers: dict[str | None, MetricHandler] = {None: NullMetricHandler()}
"""By group; None for every group that has no handler of its own."""


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """Give the metrics of `group` to `handler`; with None, those of every group that has no handler of its own."""
    _handlers[group] = handler


def put_metric(metric_name: str, metric_value: float, metric_group: str = DEFAULT_GROUP) -> None:
    """Give one value to the handler of the group. An error of the handler is logged and not raised."""
    handler = _handlers.get(metric_group, _handlers[None])
    try:
        handler.emit(MetricData(_clock.timestamp(), metric_group, metric_name, metric_value))
    except Exception as error:  # noqa: BLE001 - measuring must not end what is measured
        _log.warning("metric lost", metric=metric_name, handler=type(handler).__name__, exc_info=error)


@overload
def prof(fn: Callable[P, T], group: str = DEFAULT_GROUP) -> Callable[P, T]: ...


@overload
def prof(fn: None = None, group: str = DEFAULT_GROUP) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def prof(
    fn: Callable[P, T] | None = None, group: str = DEFAULT_GROUP
) -> Callable[P, T] | Callable[[Callable[P, T]], Callable[P, T]]:
    """Measure every call of a function: `@prof`, or `@prof(group="...")`.

    Puts `<name>.success` or `<name>.failure` (1), then `<name>.duration.ms` (whole milliseconds). The name is
    `Class.method` for a method and `module.function` (the module's last part) for a function.
    """
    if fn is None:
        return lambda function: _measured(function, group)
    return _measured(fn, group)


def _measured(function: Callable[P, T], group: str) -> Callable[P, T]:
    name = _metric_name(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        start = _clock.now()
        try:
            result = function(*args, **kwargs)
        except BaseException:
            _put_outcome(name, "failure", start, group)
            raise
        _put_outcome(name, "success", start, group)
        return result

    return call


def _put_outcome(name: str, outcome: str, start: Instant, group: str) -> None:
    elapsed = _clock.now() - start
    put_metric(f"{name}.{outcome}", 1, group)
    put_metric(f"{name}.duration.ms", int(elapsed * 1000), group)


def _metric_name(function: Callable[..., object]) -> str:
    qualified: str = function.__qualname__
    module = (function.__module__ or "").rpartition(".")[2]
    return f"{module}.{qualified}" if module and "." not in qualified else qualified
