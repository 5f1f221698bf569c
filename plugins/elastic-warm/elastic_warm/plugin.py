"""Registers the worker starter `warm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_core.plugin import Option, WorkerStarterRecord, hookimpl

if TYPE_CHECKING:
    from elastic_core.plugin import Context, Starter, Work

_OPTIONS = (
    Option("cache", str, None, "folder for the list of imports that the next run begins with"),
    Option("exclude", str, "", "modules and packages to import in workers, never in the template; separated by spaces"),
    Option("memory", int, 0, "memory that the template may allocate; 0: a quarter of the machine's", "bytes", least=0),
)


def _create_starter(context: Context, work: Work) -> Starter:
    from elastic_warm.starter import warm_starter

    return warm_starter(work, context.options)


def _explain(context: Context, work: Work) -> dict[str, Any]:
    from elastic_warm.starter import cached_imports

    return cached_imports(work, context.options)


@hookimpl
def elastic_worker_starters() -> list[WorkerStarterRecord]:
    summary = "Python programs and functions, each forked from a process that has already imported their modules"
    return [WorkerStarterRecord("warm", summary, _create_starter, _OPTIONS, explain=_explain)]
