"""Registers the notice sources. A source's module is imported only if the user has selected the source."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from elastic_core.plugin import NoticeRecord, Option, hookimpl

if TYPE_CHECKING:
    from elastic_core.plugin import Context, Notices, Pause


class _Source(NamedTuple):
    summary: str
    module: str
    function: str


_SOURCES = {
    "aws": _Source("AWS interrupts this spot instance", "aws", "watch_interruption"),
    "aws-rebalance": _Source("AWS recommends replacing this spot instance", "aws", "watch_rebalance"),
    "gcp": _Source("GCP preempts this VM, or stops it for host maintenance", "gcp", "watch_vm"),
    "azure": _Source("Azure preempts, terminates, reboots or redeploys this VM", "azure", "watch_vm"),
    "slurm": _Source("the Slurm job reaches its time limit", "slurm", "watch_job"),
    "slurm-node": _Source("Slurm drains this node", "slurm", "watch_node"),
    "file": _Source("the file --notice-file exists", "watched_file", "watch_file"),
    "http": _Source("the URL --notice-url returns a notice", "url", "watch_url"),
}

_ALL = ", ".join(_SOURCES)
_OPTIONS = {"file": "notice_file", "http": "notice_url"}  # what a source needs


@hookimpl
def elastic_add_options() -> list[Option]:
    every = "time between polls; the default depends on the source"
    return [
        Option("notices", str, None, f"notice sources to watch, separated by commas: {_ALL}", check=_check_sources),
        Option("notice_file", str, None, "the file whose existence the source file reports"),
        Option("notice_url", str, None, "the URL that the source http polls", secret=True),
        Option("notice_interval", float, None, every, "seconds", least=0.1, most=3600),
        Option("notice_endpoint", str, None, "URL of the metadata service; the default depends on the cloud"),
    ]


@hookimpl
def elastic_notices() -> list[NoticeRecord]:
    return [_record(name, source) for name, source in _SOURCES.items()]


def _record(name: str, source: _Source) -> NoticeRecord:
    def watch(context: Context, pause: Pause) -> Notices:
        if name not in _names_in(context.options["notices"] or ""):
            option = _OPTIONS.get(name)
            if option and context.options[option]:
                flag, reason = f"--{option.replace('_', '-')}", f"has no effect without --notices={name}"
                context.log.warning("setting ignored", origin=flag, reason=reason)
            return iter(())
        notices: Notices = getattr(import_module(f"elastic_notices.{source.module}"), source.function)(context, pause)
        return notices

    return NoticeRecord(name, source.summary, watch)


def _names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _check_sources(text: str) -> None:
    if unknown := [name for name in _names_in(text) if name not in _SOURCES]:
        raise ValueError(f"no notice source is named {unknown[0]!r} (sources: {_ALL})")
