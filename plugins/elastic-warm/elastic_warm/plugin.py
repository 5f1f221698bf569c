"""Registers the `warm` worker starter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_core.plugin import Option, WorkerStarterRecord, hookimpl

if TYPE_CHECKING:
    from elastic_core.plugin import Context, Starter, Work

_OPTIONS = (
    Option("cache", str, None, "folder that stores the list of imports for the next run"),
    Option("exclude", str, "", "modules and packages that the template does not import, separated by spaces"),
    Option(
        "memory", int, 0, "memory limit for the template; 0 means a quarter of the machine's memory", "bytes", least=0
    ),
)


def _create_starter(context: Context, work: Work) -> Starter:
    from elastic_warm.starter import warm_starter

    return warm_starter(work, context.options)


def _explain(context: Context, work: Work) -> dict[str, Any]:
    from elastic_warm.starter import cached_imports

    return cached_imports(work, context.options)


@hookimpl
def elastic_worker_starters() -> list[WorkerStarterRecord]:
    summary = "Python programs and functions, forked from a process that has already imported their modules"
    return [WorkerStarterRecord("warm", summary, _create_starter, _OPTIONS, explain=_explain)]
