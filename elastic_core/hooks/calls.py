"""Calls the hooks of a running job. The hooks notify plugins of events and collect environment variables for the
workers. An error in a plugin is logged, and affects neither the job nor other plugins."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.errors import InvalidPlugin
from elastic_core.hooks.records import Context, NoticeRecord
from elastic_core.interfaces.node import Notice
from elastic_core.log import get_logger, tolerating

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from elastic_core.config import Settings
    from elastic_core.hooks.discovery import Source
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.hooks.records import Record
    from elastic_core.hooks.selection import Chosen
    from elastic_core.interfaces.node import Notices, Pause
    from elastic_core.interfaces.observer import Fact, Observer
    from elastic_core.interfaces.workers import RoundPlan, Watchdog

    Values = Mapping[str, object]
    R = TypeVar("R", bound=Record)


class Contexts:
    """Creates the contexts of the plugins. `values` maps the names of added options to their values."""

    def __init__(self, manager: PluginManager, settings: Settings | None = None, values: Values | None = None) -> None:
        self.manager = manager
        self._run_id = (settings.rdzv_id if settings else None) or ""
        given = vars(settings).items() if settings else ()
        self._shown = {name: value for name, value in given if not isinstance(value, Mapping)}
        self._values = values or {}

    def of(self, source: Source, options: Values = MappingProxyType({})) -> Context:
        """Return the context for a plugin's hooks or, with the values of a record's options, for its functions."""
        added = {it.name: self._values.get(it.name, it.default) for it in self.manager.added_by(source)}
        return Context(
            self._run_id,
            MappingProxyType({**added, **options}),
            MappingProxyType(self._shown),
            get_logger(**source.as_dict()),
        )


def installed_record(
    kind: type[R], name: str, given: Values, origin: str, run_id: str = ""
) -> tuple[Chosen[R], Context]:
    """Select a record outside of a run. Returns it with its typed options, and the context for its functions, in which
    the options that the plugin adds have their defaults. `origin` is the source of `given`, for messages.

    Raises ConfigurationError if no plugin, or several, provide the name, or if an option is invalid."""
    from elastic_core.hooks.manager import PluginManager  # slow to import: it scans the installed distributions
    from elastic_core.hooks.selection import Selection

    manager = PluginManager.load(os.environ)
    chosen = Selection(kind, name, given, origin).choose(manager)
    return chosen, replace(Contexts(manager).of(chosen.source, chosen.options), run_id=run_id)


def hook_of(fact: type[Fact]) -> str:
    """Return the hook for a kind of fact, such as `elastic_round_formed` for `RoundFormed`."""
    words = re.findall("[A-Z][a-z]*", fact.__name__)
    return "_".join(["elastic", *words]).lower()


def notifier(contexts: Contexts) -> Observer:
    """Return an observer that passes each fact to all implementations of its hook, in the caller's thread."""

    def notify(fact: Fact) -> None:
        hook = hook_of(type(fact))
        for observer in contexts.manager.implementations(hook):
            with tolerating(part=hook, **observer.source.as_dict()):
                observer(fact=fact, context=contexts.of(observer.source))

    return notify


def watchdog_notifier(watchdog: Watchdog, name: str, log_files: Callable[[int], tuple[Path, ...]]) -> Observer:
    """Return an observer that notifies a watchdog of each round's workers. `log_files` returns the log files of a local
    rank."""
    from elastic_core.interfaces.observer import WorkersStarted  # not imported by commands that observe a job
    from elastic_core.interfaces.workers import WatchedWorker

    def notify(fact: Fact) -> None:
        if not isinstance(fact, WorkersStarted):
            return
        pids = sorted(fact.pids.items())
        with tolerating("plugin failed", "its round_started", part=f"watchdog {name}"):
            watchdog.round_started([WatchedWorker(rank, fact.ranks[rank], pid, log_files(rank)) for rank, pid in pids])

    return notify


def notice_sources(contexts: Contexts, pause: Pause) -> list[tuple[str, Notices]]:
    """Create the plugins' notice sources. Returns each with its name.

    Raises:
        PluginError, ConfigurationError: a source cannot be created.
    """
    records = contexts.manager.records(NoticeRecord)
    return [(item.record.name, item.record.factory(contexts.of(item.source), pause)) for item in records]


@contextlib.contextmanager
def watching_notices(contexts: Contexts, receive: Callable[[str, Notice | None], object]) -> Iterator[None]:
    """Run the plugins' notice sources, each in a separate thread, until the context ends. `receive` is called with a
    source's name and each of its notices. Raises the errors of `notice_sources`."""
    over = threading.Event()
    try:
        for name, notices in notice_sources(contexts, lambda seconds: not over.wait(seconds)):
            threading.Thread(
                target=_pass_on, args=(notices, name, receive, over), name=f"notices-{name}", daemon=True
            ).start()
        yield
    finally:
        over.set()


def _pass_on(
    notices: Notices, name: str, receive: Callable[[str, Notice | None], object], over: threading.Event
) -> None:
    with tolerating("plugin failed", "the source is no longer watched, because it", part=f"notice source {name}"):
        for notice in notices:
            if over.is_set():
                return
            if not (notice is None or isinstance(notice, Notice)):
                raise InvalidPlugin(f"the source is no longer watched: expected a Notice or None, found {notice!r}")
            receive(name, notice)


def contributed_environment(plan: RoundPlan, contexts: Contexts) -> dict[str, str]:
    """Return the variables that plugins contribute to a round's workers. If two plugins set a variable to different
    values, the first plugin's value is used. An invalid variable is logged, and all variables from its plugin are
    ignored."""
    merged: dict[str, str] = {}
    contributors: dict[str, Source] = {}
    for implementation in contexts.manager.implementations("elastic_contribute_environment"):
        source = implementation.source
        fields = {"part": "elastic_contribute_environment", **source.as_dict()}
        with tolerating(**fields):
            for name, value in _checked(implementation(plan=plan, context=contexts.of(source))).items():
                first = contributors.setdefault(name, source)
                if merged.setdefault(name, value) != value:
                    reason = f"{first.described} sets {name} to a different value, which takes precedence"
                    get_logger().warning("plugin failed", **fields, variable=name, reason=reason)
    return merged


def _checked(returned: Any) -> Mapping[str, str]:
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise InvalidPlugin(f"expected a mapping of variables, found an object of type {type(returned).__name__}")
    for name, value in returned.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidPlugin(f"a variable and its value must be strings; found {name!r}={value!r}")
        if not name or "=" in name or "\0" in name + value:
            raise InvalidPlugin(
                f"expected a valid variable, found {name!r}; the name must not be empty or contain '=', and neither "
                "the name nor the value may contain NUL"
            )
        os.fsencode(name + value)  # raises an error for a lone surrogate
    return dict(returned)
