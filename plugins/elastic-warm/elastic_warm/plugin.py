"""What the plugin registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_core.plugin import Option, WorkerStarterRecord, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.plugin import Starter, Work

_OPTIONS = (
    Option("cache", str, None, "folder where what the workers import is kept for the next run"),
    Option("exclude", str, "", "modules and packages that only workers import, separated by spaces"),
    Option("memory", int, 0, "what the template may allocate; 0: a quarter of the machine's memory", "bytes", least=0),
)


def _warm(work: Work, options: Mapping[str, Any]) -> Starter:
    from elastic_warm.starter import warm_starter

    return warm_starter(work, options)


def _explain(work: Work, options: Mapping[str, Any]) -> dict[str, Any]:
    from elastic_warm.starter import kept_imports

    return kept_imports(work, options)


@hookimpl
def elastic_worker_starters() -> list[WorkerStarterRecord]:
    summary = "Python programs and functions, each in a copy of a Python that has imported what they import"
    return [WorkerStarterRecord("warm", summary, _warm, _OPTIONS, explain=_explain)]
