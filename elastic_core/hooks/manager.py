"""Loads the plugins and looks up what they provide. Only this module and the hookspecs use pluggy.

Loading imports each plugin, checks its hooks, and calls its registration hooks once. If a step fails, the plugin is
removed together with everything that it provides, and the error is recorded in `failures`. Other plugins are not
affected.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from elastic_core.errors import InvalidPlugin, PluginError, Problem, described_error
from elastic_core.hooks import spec
from elastic_core.hooks.discovery import (
    ALLOW_FLAG,
    ALLOW_VARIABLE,
    CORE,
    DISABLE_VARIABLE,
    GROUP,
    HANDLERS_GROUP,
    Candidate,
    Failure,
    Source,
    candidates,
    failure_of,
    installed_entry_points,
    listed_names,
    own_version,
)
from elastic_core.hooks.records import (
    KINDS,
    Option,
    Record,
    RendezvousBackendRecord,
    StoreRecord,
    checked,
)
from elastic_core.hooks.selection import Conflict, Provided, attributed, contested, names_of
from elastic_core.text import did_you_mean, normalised

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from importlib.metadata import EntryPoint

R = TypeVar("R", bound=Record)
T = TypeVar("T")

HOOKS: tuple[str, ...] = tuple(name for name in vars(spec) if name.startswith("elastic_"))
"""Every hook, in the order of `hooks/spec.py`."""


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin. `target` is its import path, and `hooks` contains the hooks that it implements."""

    source: Source
    target: str
    hooks: tuple[str, ...]


@dataclass(frozen=True)
class Implementation:
    """One plugin's implementation of a hook."""

    source: Source
    hook: pluggy.HookImpl

    def __call__(self, **arguments: Any) -> Any:
        """Call the implementation with only the arguments that its signature contains."""
        return self.hook.function(**{name: arguments[name] for name in self.hook.argnames})


class PluginManager:
    """Holds the installed plugins, their records and options, and all load failures. Immutable after creation."""

    def __init__(
        self,
        plugins: Sequence[Candidate],
        handlers: Sequence[Candidate] = (),
        blocked: Collection[str] = (),
        failures: Iterable[Failure] = (),
        reserved: Iterable[str] = (),
        allowed: Collection[str] | None = None,
    ) -> None:
        sources = sorted({candidate.source for candidate in (*plugins, *handlers)})
        self.allowed = None if allowed is None else tuple(allowed)
        """The distributions to which loading is limited, as the user wrote them, or None for no limit."""
        unwanted = {normalised(name) for name in blocked}
        admissible = None if allowed is None else {CORE, *map(normalised, allowed)}
        self.blocked: dict[Source, str] = {}
        """The plugins that the user has excluded, each with the name of the list that excludes it."""
        for source in sources:
            if source.names & unwanted:
                self.blocked[source] = DISABLE_VARIABLE
            elif admissible is not None and normalised(source.distribution) not in admissible:
                self.blocked[source] = ALLOW_FLAG
        self._known_names = {name for source in sources for name in source.names}
        self._distributions = {CORE, *(normalised(source.distribution) for source in sources)}
        self.unknown_blocks = tuple(name for name in blocked if normalised(name) not in self._known_names)
        self.unknown_allowed = tuple(name for name in allowed or () if normalised(name) not in self._distributions)
        self._failures = list(failures)
        self._reserved = dict.fromkeys(map(normalised, reserved), Source(CORE, "run", own_version()))
        self._admitted: dict[str, Candidate] = {}
        self._provided: list[Provided[Record]] = []
        self._options: list[Provided[Option]] = []
        self._pluggy = pluggy.PluginManager(spec.PROJECT)
        self._pluggy.add_hookspecs(spec)
        for candidate in reversed(plugins):  # pluggy calls the plugin that was registered last first
            if candidate.source not in self.blocked:
                self._admit(candidate)
        self.failures: tuple[Failure, ...] = tuple(sorted(self._failures, key=lambda failure: failure.source))
        """The plugins that could not be loaded, with the reasons."""
        self.handlers: tuple[Candidate, ...] = tuple(item for item in handlers if item.source not in self.blocked)
        """The entry points that were written for torchrun and are not blocked. They have not been imported yet."""
        for derived in (self._backends_of_stores(), self._backends_of_torchrun()):
            backends = self.records(RendezvousBackendRecord)
            own = {(item.source.distribution, name) for item in backends for name in names_of(item.record)}
            for item in derived:
                free = [name for name in names_of(item.record) if (item.source.distribution, name) not in own]
                if item.record.name in free:
                    record = replace(item.record, aliases=tuple(free[1:]))
                    self._provided.append(Provided(record, item.source))

    @classmethod
    def load(
        cls,
        environ: Mapping[str, str],
        entry_points: Iterable[EntryPoint] | None = None,
        reserved: Iterable[str] = (),
        allowed: Collection[str] | None = None,
    ) -> PluginManager:
        """Load all plugins that are installed, allowed and not blocked. Errors in plugins are recorded, not raised.

        Args:
            environ: provides `ELASTIC_DISABLE_PLUGINS` and, if `allowed` is None, `ELASTIC_PLUGINS`.
            entry_points: entry points to use instead of the installed ones. Entry points in other groups are ignored.
            reserved: names that plugins must not use for the options that they add.
            allowed: the distributions whose plugins may be loaded in addition to the built-in ones.
        """
        points, failures = installed_entry_points() if entry_points is None else (list(entry_points), [])
        plugins, handlers = candidates(points, GROUP), candidates(points, HANDLERS_GROUP)
        if allowed is None:
            allowed = listed_names(environ, ALLOW_VARIABLE) or None
        return cls(plugins, handlers, listed_names(environ, DISABLE_VARIABLE), failures, reserved, allowed)

    def _admit(self, candidate: Candidate) -> None:
        key = f"{candidate.source.distribution}:{candidate.source.plugin}"
        try:
            self._register(key, candidate)
            options = [
                Provided(option, candidate.source) for option in self._returned(key, "elastic_add_options", Option)
            ]
            records = [
                attributed(it, candidate.source) for kind in KINDS for it in self._returned(key, kind.hook, kind)
            ]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything
            if self._admitted.get(key) is candidate:
                del self._admitted[key]
                self._pluggy.unregister(name=key)
            self._failures.append(failure_of(candidate.source, error))
        else:
            self._options += options
            self._provided += records

    def _register(self, key: str, candidate: Candidate) -> None:
        if key in self._admitted:
            raise InvalidPlugin(f"another plugin with that name is already loaded: {self._admitted[key].target}")
        plugin = candidate.load()
        if self._pluggy.is_registered(plugin):
            raise InvalidPlugin(f"{candidate.target} is already loaded as {self._pluggy.get_name(plugin)}")
        _check_hooks(plugin, self._pluggy)
        self._admitted[key] = candidate
        try:
            self._pluggy.register(plugin, key)
        except pluggy.PluginValidationError as error:
            raise InvalidPlugin(" ".join(str(error).split())) from error

    def _returned(self, key: str, hook: str, expected: type[T]) -> list[T]:
        """Return the result of one plugin's registration hook, or an empty list if the plugin does not implement it."""
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
        """The loaded plugins, ordered by distribution and name."""
        hooks = {hook: {item.hook.plugin_name for item in self.implementations(hook)} for hook in HOOKS}
        loaded = [
            Plugin(candidate.source, candidate.target, tuple(hook for hook in HOOKS if key in hooks[hook]))
            for key, candidate in self._admitted.items()
        ]
        return tuple(sorted(loaded, key=lambda plugin: plugin.source))

    def implementations(self, hook: str) -> tuple[Implementation, ...]:
        """Return the hook's implementations in call order: first `tryfirst`, then by distribution and plugin name."""
        caller: pluggy.HookCaller = getattr(self._pluggy.hook, hook)
        return tuple(
            Implementation(self._admitted[found.plugin_name].source, found)
            for found in reversed(caller.get_hookimpls())
        )

    def records(self, kind: type[R]) -> tuple[Provided[R], ...]:
        """Return the records of one kind that plugins provide, ordered by name, including conflicting ones. Errors in
        their functions name the plugin."""
        found: list[Provided[Any]] = [item for item in self._provided if isinstance(item.record, kind)]
        return tuple(sorted(found, key=lambda item: (item.record.name, item.source)))

    def _backends_of_torchrun(self) -> list[Provided[RendezvousBackendRecord]]:
        if not self.handlers:
            return []
        from elastic_core.compat.backends import of_handler

        return [attributed(of_handler(handler), handler.source) for handler in self.handlers]

    def _backends_of_stores(self) -> list[Provided[RendezvousBackendRecord]]:
        from elastic_core.compat.backends import of_store

        stores = [item for item in self.records(StoreRecord) if item.record.shared]
        return [attributed(of_store(item.record), item.source) for item in stores]

    def provided(self, kind: type[R], name: str) -> Provided[R]:
        """Return the record with that name or alias, and the plugin that provides it.

        Raises:
            PluginError: several plugins provide the name, or no plugin does. The message contains a remedy.
        """
        matches = [item for item in self.records(kind) if name in names_of(item.record)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            conflict = Conflict(kind.noun, name, tuple(sorted(item.source for item in matches)))
            raise PluginError(Problem(kind.flag, str(conflict)))
        raise PluginError(Problem(kind.flag, "\n  ".join(self._unknown(kind, name))))

    def _unknown(self, kind: type[Record], name: str) -> Iterator[str]:
        provided = self.records(kind)
        known = {known_name for item in provided for known_name in names_of(item.record)}
        hint = "" if name in kind.homes else did_you_mean(name, known | set(kind.homes))
        yield f"no {kind.noun} named {name!r} is installed{hint}"
        here = [f"{'/'.join(names_of(item.record))} ({item.source})" for item in provided]
        yield f"installed: {', '.join(sorted(here)) or 'none'}"
        yield from (f"failed to load: {failure}" for failure in self.failures)
        yield from self.about_blocked()
        if home := self.to_install(kind, name):
            yield f"to install it: pip install {home}"

    def select(self, kind: type[R], name: str) -> R:
        """Return the record with that name or alias. Raises PluginError in the same cases as `provided`."""
        return self.provided(kind, name).record

    def backend_named(self, name: str) -> RendezvousBackendRecord | None:
        """Return the rendezvous backend with that name or alias, or None if `select` raises PluginError."""
        try:
            return self.select(RendezvousBackendRecord, name)
        except PluginError:
            return None

    def about_blocked(self) -> list[str]:
        """Return a message for each plugin that is blocked."""
        return [f"blocked by {by}: {source.described}" for source, by in self.blocked.items()]

    def about_unknown_allowed(self) -> list[str]:
        """Return a message for each name in `unknown_allowed`, with the most similar known name."""
        return [
            f"{ALLOW_FLAG}: no installed distribution with plugins is named {name!r}"
            f"{did_you_mean(normalised(name), self._distributions)}"
            for name in self.unknown_allowed
        ]

    def about_unknown_blocks(self) -> list[str]:
        """Return a message for each name in `unknown_blocks`, with the most similar known name."""
        return [
            f"{DISABLE_VARIABLE}: no installed plugin or distribution is named {name!r}"
            f"{did_you_mean(normalised(name), self._known_names)}"
            for name in self.unknown_blocks
        ]

    def to_install(self, kind: type[Record], name: str) -> str | None:
        """Return the distribution of this project that provides a missing name. Return None if installing a
        distribution would not help."""
        if any(name in names_of(item.record) for item in self.records(kind)):
            return None
        home = kind.homes.get(name)
        present = {*self.blocked, *(failure.source for failure in self.failures)}
        return None if home in {normalised(source.distribution) for source in present} else home

    def conflicts(self) -> tuple[Conflict, ...]:
        """Return all names that several plugins provide, by kind of record, followed by `option_conflicts`."""
        found: list[Conflict] = []
        for kind in KINDS:
            provided = self.records(kind)
            found += contested(kind.noun, ((name, item.source) for item in provided for name in names_of(item.record)))
        return (*found, *self.option_conflicts())

    def added_options(self) -> list[Option]:
        """Return the options that plugins add to `elastic run`, ordered by name, without conflicting ones."""
        contested = {conflict.name for conflict in self.option_conflicts()}
        options = [item.record for item in self._options if normalised(item.record.name) not in contested]
        return sorted(options, key=lambda option: option.name)

    def secret_options(self) -> frozenset[str]:
        """Return the names of the secret options in all records, in lower case with underscores."""
        options = [option for item in self._provided for option in item.record.options or ()]
        return frozenset(option.name.replace("-", "_").lower() for option in options if option.secret)

    def option_conflicts(self) -> tuple[Conflict, ...]:
        """Return the added options whose names are reserved or used twice. `-` and `_` are equivalent."""
        added = [(normalised(item.record.name), item.source) for item in self._options]
        taken = {name: self._reserved[name] for name, _ in added if name in self._reserved}
        return contested("option", [*added, *taken.items()])

    def added_by(self, source: Source) -> tuple[Option, ...]:
        """Return the options that one plugin adds."""
        return tuple(item.record for item in self._options if item.source == source)


def _check_hooks(plugin: object, pluggy_manager: pluggy.PluginManager) -> None:
    """Raise InvalidPlugin for a class, an unknown hook, a hook wrapper, or an unmarked hook."""
    if isinstance(plugin, type):
        raise InvalidPlugin(f"expected a module or an object, found the class {plugin.__name__}; export an instance")
    problems = []
    for attribute in dir(plugin):
        options = pluggy_manager.parse_hookimpl_opts(plugin, attribute)
        if options is None:
            if attribute in HOOKS:
                problems.append(f"{attribute} is not marked; write @hookimpl above it")
            continue
        hook = options.get("specname") or attribute
        if hook not in HOOKS and not options.get("optionalhook"):
            problems.append(f"unknown hook {hook!r}{did_you_mean(hook, HOOKS)}")
        if options.get("wrapper") or options.get("hookwrapper"):
            problems.append(f"{hook} is a hook wrapper, which is not supported; write a plain function")
    if problems:
        raise InvalidPlugin("; ".join(problems))
