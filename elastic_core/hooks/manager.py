"""Loads the plugins, each in its own try, and answers what they bring. The only user of pluggy beside the specs.

A plugin is imported, its hooks are checked, and its registration hooks are called once, all at load time. Whatever
goes wrong takes out that plugin with all it brings, and is kept in `failures`; the others live.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pluggy

from elastic_core.hooks import selection, spec
from elastic_core.hooks.contribution import merged_environment
from elastic_core.hooks.discovery import (
    BUILTINS,
    CORE,
    GROUP,
    HANDLERS_GROUP,
    BlockList,
    Candidate,
    Failure,
    InvalidPlugin,
    Source,
    candidates,
    described_error,
    failure_of,
    installed_entry_points,
    own_version,
    with_builtins,
)
from elastic_core.hooks.kinds import KINDS, kind_of
from elastic_core.hooks.names import normalised
from elastic_core.hooks.records import Option, Record, RendezvousBackendRecord, StoreRecord
from elastic_core.hooks.selection import Conflict, Provided
from elastic_core.hooks.torchrun_handlers import provided_handler, without_twins
from elastic_core.hooks.validation import check_hooks, checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from importlib.metadata import EntryPoint

    from elastic_core.interfaces.workers import RoundPlan

R = TypeVar("R", bound=Record)
T = TypeVar("T")

HOOKS: tuple[str, ...] = tuple(name for name in vars(spec) if name.startswith("elastic_"))
"""Every hook, in the order of `hooks/spec.py`."""


@dataclass(frozen=True)
class Plugin:
    """A plugin that lives: where it comes from, its import path, and the hooks it implements."""

    source: Source
    target: str
    hooks: tuple[str, ...]


@dataclass(frozen=True)
class Implementation:
    """One plugin's implementation of a hook."""

    source: Source
    hook: pluggy.HookImpl

    def __call__(self, **arguments: Any) -> Any:
        """Call it with those of the hook's arguments that it asks for."""
        return self.hook.function(**{name: arguments[name] for name in self.hook.argnames})


class PluginManager:
    """What is installed and works, and what does not and why. Made by `load`; changes no more afterwards."""

    def __init__(
        self,
        plugins: Iterable[Candidate],
        handlers: Iterable[Candidate] = (),
        block_list: BlockList | None = None,
        failures: Iterable[Failure] = (),
        reserved: Iterable[str] = (),
    ) -> None:
        block_list = block_list or BlockList()
        plugins, handlers = list(plugins), list(handlers)
        sources = [candidate.source for candidate in (*plugins, *handlers)]
        self.blocked: tuple[Source, ...] = tuple(sorted(set(filter(block_list.blocks, sources))))
        self.unknown_blocks: tuple[str, ...] = block_list.unknown(sources)
        self._failures = list(failures)
        core = Source(CORE, "run", own_version())
        self._reserved = {normalised(name): core for name in reserved}
        self._admitted: dict[str, Candidate] = {}
        self._provided: list[Provided[Record]] = []
        self._options: list[Provided[Option]] = []
        self._pluggy = pluggy.PluginManager(spec.PROJECT)
        self._pluggy.add_hookspecs(spec)
        for candidate in reversed(plugins):  # pluggy calls the last registered first
            if candidate.source not in self.blocked:
                self._admit(candidate)
        self._handlers = tuple(item for item in handlers if item.source not in self.blocked)

    @classmethod
    def load(
        cls,
        environ: Mapping[str, str],
        builtins: Iterable[str] = BUILTINS,
        entry_points: Iterable[EntryPoint] | None = None,
        reserved: Iterable[str] = (),
    ) -> PluginManager:
        """Load every plugin that is installed and not blocked. Never raises for what a plugin does.

        Args:
            environ: where `ELASTIC_DISABLE_PLUGINS` is read.
            builtins: modules of the core to load when no entry point brings them.
            entry_points: instead of those that are installed; entries of other groups are passed over.
            reserved: names that the options which plugins add must not have.
        """
        points, failures = installed_entry_points() if entry_points is None else (list(entry_points), [])
        plugins = with_builtins(candidates(points, GROUP), builtins)
        return cls(plugins, candidates(points, HANDLERS_GROUP), BlockList.of(environ), failures, reserved)

    def _admit(self, candidate: Candidate) -> None:
        """Take the plugin in whole, or record why not."""
        key = f"{candidate.source.distribution}:{candidate.source.plugin}"
        try:
            self._register(key, candidate)
            options = [
                Provided(option, candidate.source) for option in self._returned(key, "elastic_add_options", Option)
            ]
            records = [
                Provided(record, candidate.source)
                for kind in KINDS
                for record in self._returned(key, kind.hook, kind.record)
            ]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise whatever it likes
            self._expel(key, candidate)
            self._failures.append(failure_of(candidate.source, error))
        else:
            self._options += options
            self._provided += records

    def _register(self, key: str, candidate: Candidate) -> None:
        if key in self._admitted:
            raise InvalidPlugin(f"another plugin of that name is loaded already, {self._admitted[key].target}")
        plugin = candidate.load()
        if self._pluggy.is_registered(plugin):
            raise InvalidPlugin(f"{candidate.target} is loaded already, as {self._pluggy.get_name(plugin)}")
        check_hooks(plugin, self._pluggy, HOOKS)
        self._admitted[key] = candidate
        try:
            self._pluggy.register(plugin, key)
        except pluggy.PluginValidationError as error:
            raise InvalidPlugin(" ".join(str(error).split())) from error

    def _expel(self, key: str, candidate: Candidate) -> None:
        if self._admitted.get(key) is candidate:
            del self._admitted[key]
            if self._pluggy.has_plugin(key):
                self._pluggy.unregister(name=key)

    def _returned(self, key: str, hook: str, expected: type[T]) -> list[T]:
        """What one plugin's registration hook returns; empty when it has none."""
        found: list[T] = []
        for implementation in self.implementations(hook):
            if implementation.hook.plugin_name == key:
                try:
                    returned = implementation()
                except (Exception, SystemExit) as error:
                    raise InvalidPlugin(f"{hook} raised {described_error(error)}") from error
                found += checked(hook, returned, expected)
        return found

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """The plugins that live, ordered by distribution and name."""
        hooks = {hook: {item.hook.plugin_name for item in self.implementations(hook)} for hook in HOOKS}
        living = [
            Plugin(candidate.source, candidate.target, tuple(hook for hook in HOOKS if key in hooks[hook]))
            for key, candidate in self._admitted.items()
        ]
        return tuple(sorted(living, key=lambda plugin: plugin.source))

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The plugins that were taken out, and why."""
        return tuple(sorted(self._failures, key=lambda failure: failure.source))

    @property
    def handlers(self) -> tuple[Candidate, ...]:
        """The entry points written for torchrun, blocked ones left out, none of them imported."""
        return self._handlers

    def implementations(self, hook: str) -> tuple[Implementation, ...]:
        """Who implements the hook, in the order of calling: by distribution and plugin name, `tryfirst` before."""
        caller: pluggy.HookCaller = getattr(self._pluggy.hook, hook)
        return tuple(
            Implementation(self._admitted[found.plugin_name].source, found)
            for found in reversed(caller.get_hookimpls())
        )

    def records(self, kind: type[R]) -> tuple[Provided[R], ...]:
        """The records of one kind that plugins provide, ordered by name. Conflicting ones are all there."""
        found = [item for item in self._provided if isinstance(item.record, kind)]
        if kind is RendezvousBackendRecord:
            native = cast("list[Provided[RendezvousBackendRecord]]", found)
            native = [*native, *self._brought_by_stores(native)]
            found = [*native, *without_twins(map(provided_handler, self._handlers), native)]
        ordered = sorted(found, key=lambda item: (item.record.name, item.source))
        return tuple(cast("list[Provided[R]]", ordered))

    def _brought_by_stores(
        self, native: list[Provided[RendezvousBackendRecord]]
    ) -> Iterator[Provided[RendezvousBackendRecord]]:
        """The backends of stores, but for those whose distribution brings a backend of that name itself."""
        from elastic_core.rendezvous.from_store import record_of

        own = {(item.source.distribution, name) for item in native for name in selection.names_of(item.record)}
        for item in self._provided:
            store, brings = item.record, item.source.distribution
            if isinstance(store, StoreRecord) and store.shared and (brings, store.name) not in own:
                yield Provided(record_of(store), item.source)

    def provided(self, kind: type[R], name: str, origin: str | None = None) -> Provided[R]:
        """The one record of that name or alias, with who brought it.

        `origin` is the place the name came from, for the message; default the kind's flag.

        Raises:
            PluginError: several plugins provide the name, or none does; the message says what to do.
        """
        about = kind_of(kind)
        records = self.records(kind)
        return selection.select(about, records, name, origin or about.flag, self.failures, self.blocked)

    def select(self, kind: type[R], name: str, origin: str | None = None) -> R:
        """The one record of that name or alias. Arguments and errors as for `provided`."""
        return self.provided(kind, name, origin).record

    def conflicts(self) -> tuple[Conflict, ...]:
        """Every name that several plugins provide, by kind of record, and then `option_conflicts`."""
        found = [conflict for kind in KINDS for conflict in selection.conflicts(kind, self.records(kind.record))]
        return (*found, *self.option_conflicts())

    def added_options(self) -> list[Option]:
        """The options that plugins add to `elastic run`, ordered by name. Those in conflict are left out."""
        contested = {conflict.name for conflict in self.option_conflicts()}
        options = [item.record for item in self._options if normalised(item.record.name) not in contested]
        return sorted(options, key=lambda option: option.name)

    def secret_options(self) -> frozenset[str]:
        """The names of the options of records whose values nobody is shown, with underscores, in lower case."""
        options = [option for item in self._provided for option in item.record.options or ()]
        return frozenset(option.name.replace("-", "_").lower() for option in options if option.secret)

    def option_conflicts(self) -> tuple[Conflict, ...]:
        """The added options that several plugins bring, or whose name is reserved, `-` and `_` being the same."""
        return selection.option_conflicts(self._options, self._reserved)

    def added_by(self, source: Source) -> tuple[Option, ...]:
        """The options that one plugin adds."""
        return tuple(item.record for item in self._options if item.source == source)

    def contributed_environment(self, plan: RoundPlan, options: Mapping[str, object] | None = None) -> dict[str, str]:
        """What the plugins give to the workers of a round. A plugin that fails is logged; the others count.

        `options` holds the values of the options that plugins added, by name.
        """
        call = functools.partial(functools.partial, plan=plan, options=options or {})
        implementations = self.implementations("elastic_contribute_environment")
        return merged_environment((item.source, call(item)) for item in implementations)
