"""Selects a record by its name. Exactly one plugin must provide a selected name. If several do, selecting the name is
an error, and no plugin silently wins."""

from __future__ import annotations

import functools
import json
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from elastic_core.errors import ConfigurationError, ElasticError, PluginError, Problem, described_error
from elastic_core.hooks.discovery import CORE, DISABLE_VARIABLE, Source
from elastic_core.hooks.records import OURS, CommandRecord, RendezvousBackendRecord
from elastic_core.parsing import find_option, not_needed, type_options
from elastic_core.text import normalised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from elastic_core.hooks.manager import PluginManager
    from elastic_core.hooks.records import Record

_OURS, _STANDARD = str(Path(__file__).parents[1]), str(Path(traceback.__file__).parent)

T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R", bound="Record")


@dataclass(frozen=True)
class Provided(Generic[T_co]):
    """A record (or an option) and the plugin that provides it."""

    record: T_co
    source: Source


@dataclass(frozen=True)
class Conflict:
    """A name that several plugins provide. This is an error only when a user selects the name."""

    noun: str
    name: str
    sources: tuple[Source, ...]

    @property
    def losers(self) -> tuple[Source, ...]:
        """The sources to blame for the conflict: third-party plugins if any are involved, otherwise this project's
        plugins, otherwise the core."""
        third_party = tuple(source for source in self.sources if source.distribution not in OURS)
        return third_party or tuple(source for source in self.sources if source.distribution != CORE) or self.sources

    def __str__(self) -> str:
        providers = " and ".join(source.described for source in self.sources)
        found = f"the {self.noun} {self.name!r} is provided by {providers}"
        return f"{found}; uninstall one, or block one: {self.remedy}"

    @property
    def remedy(self) -> str:
        """A shell assignment that resolves the conflict by blocking one of the plugins."""
        last = self.losers[-1]
        others = {name for source in self.sources if source != last for name in source.names}
        both = f"{last.distribution}:{last.plugin}"
        names = (name for name in (last.distribution, last.plugin) if normalised(name) not in others)
        return f"{DISABLE_VARIABLE}={next(names, both)}"


def names_of(record: Record) -> tuple[str, ...]:
    """Return the record's name, followed by its aliases."""
    return tuple(dict.fromkeys((record.name, *record.aliases)))


def contested(noun: str, pairs: Iterable[tuple[str, Source]]) -> tuple[Conflict, ...]:
    """Return a conflict for each name that has several providers. A pair contains a name and a provider."""
    providers: dict[str, list[Source]] = {}
    for name, source in pairs:
        providers.setdefault(name, []).append(source)
    found = [(name, sources) for name, sources in sorted(providers.items()) if len(sources) > 1]
    return tuple(Conflict(noun, name, tuple(sorted(sources))) for name, sources in found)


def attributed(record: R, source: Source) -> Provided[R]:
    """Return the record with its functions wrapped so that their errors name the plugin (see `attributing`)."""
    named = attributing(Provided(record, source))

    @functools.wraps(record.factory)
    def make(*args: Any, **options: Any) -> Any:
        made = record.factory(*args, **options)
        if missing := [name for name in record.made if not hasattr(made, name)]:
            raise TypeError(f"its factory must return an object with {missing[0]}(), but returned {made!r}")
        if isinstance(record, CommandRecord) and not (made is None or (isinstance(made, int) and made in range(256))):
            raise TypeError(f"its factory must return None or an exit code from 0 to 255, but returned {made!r}")
        return made

    calls = {field.name: getattr(record, field.name) for field in fields(record)} | {"factory": make}
    for name, (shape, read) in _DESCRIPTIONS.items():
        if calls.get(name) is not None:
            calls[name] = _described(calls[name], shape, read)
    return Provided(replace(record, **{name: named(call) for name, call in calls.items() if callable(call)}), source)


def _described(call: Callable[..., Any], shape: str, read: Callable[[Any], Any]) -> Callable[..., Any]:
    """Wrap a record's function to read its result completely and check the result's shape."""

    @functools.wraps(call)
    def described(*args: Any) -> Any:
        found = call(*args)
        try:
            return read(found)
        except (TypeError, ValueError, AttributeError) as error:
            raise TypeError(f"{getattr(call, '__name__', 'it')} must return {shape}, but returned {found!r}") from error

    return described


def _read_problems(found: Iterable[Problem]) -> list[Problem]:
    return [Problem(str(problem.origin), str(problem.message)) for problem in found]


def _read_defaults(found: Mapping[str, tuple[Any, str]]) -> dict[str, tuple[Any, str]]:
    if any(not isinstance(pair, tuple) for pair in found.values()):
        raise TypeError
    return {name: (value, str(reason)) for name, (value, reason) in found.items()}


def _read_hosts(found: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return [(str(host), int(port)) for host, port in found]


def _read_explanation(found: Mapping[str, Any] | None) -> Any:
    return {} if found is None else json.loads(json.dumps(dict(found), default=str))


_DESCRIPTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "defaults": ("a mapping of names to pairs of value and reason", _read_defaults),
    "problems": ("Problems", _read_problems),
    "hosts_of": ("pairs of host and port", _read_hosts),
    "explain": ("JSON values by name", _read_explanation),
}


HELPED = (ElasticError, OSError)  # a plugin's errors of these types contain advice, and are shown unchanged


class AttributedProxy:
    """A proxy for a factory's result. Errors from the methods in `calls` name the plugin (see `attributing`)."""

    def __init__(
        self,
        made: object,
        calls: tuple[str, ...],
        provided: Provided[Record],
        passed_on: tuple[type[BaseException], ...] = (ElasticError,),
    ) -> None:
        self._made = made
        named = attributing(provided, passed_on=passed_on)
        vars(self).update({name: named(getattr(made, name)) for name in calls if hasattr(made, name)})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


@contextmanager
def attributing(
    provided: Provided[Record], passed_on: tuple[type[BaseException], ...] = (ElasticError,)
) -> Iterator[None]:
    """Replace the record's `errors` with a PluginError that names the plugin, so that they do not look like bugs in the
    core. Errors of the types in `passed_on` are not replaced. The function also works as a decorator."""
    try:
        yield
    except passed_on:
        raise
    except provided.record.errors as error:
        from elastic_core.log import get_logger  # only needed here

        source, record = provided.source, provided.record
        get_logger().debug("plugin failed", **source.as_dict(), reason=described_error(error), exc_info=error)
        failed = f"the {record.noun} {record.name!r} of {source.described} failed: {described_error(error).rstrip('.')}"
        raise PluginError(Problem(record.flag, f"{failed}; {_advice(error, source)}")) from error


def _advice(error: BaseException, source: Source) -> str:
    if isinstance(error, ImportError):
        return f"pip install {source.distribution} installs its declared dependencies; its README may list others"
    if isinstance(error, OSError):
        return "check the address or file that it uses"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_theirs(frame.filename)]
    place = f"raised in {frames[-1].filename}, line {frames[-1].lineno}; " if frames else ""
    return f"{place}report it to the plugin's authors with the traceback, which --log-level=debug shows"


def _is_theirs(path: str) -> bool:
    """Return whether the file belongs neither to this project nor to the standard library."""
    installed = "site-packages" in path or "dist-packages" in path
    return not path.startswith(_OURS) and (installed or not path.startswith(_STANDARD))


SECRET = "secret_file"
"""The option of signing backends that `--rdzv-secret-file` sets."""


@dataclass(frozen=True)
class Chosen(Provided[R]):
    """A record that the settings select, with typed values or defaults for its options."""

    options: Mapping[str, Any]


@dataclass(frozen=True)
class Selection:
    """The settings that select one record.

    Args:
        given: the options as the user wrote them.
        origin: the source of `given`, usually a flag, for messages.
        flags: settings that also set options. A setting applies to the option of the same name if the record declares
            that option and `given` does not set it.
    """

    kind: type[Record]
    name: str
    given: Mapping[str, object]
    origin: str
    flags: Mapping[str, object] = field(default_factory=dict)

    def choose(self, manager: PluginManager) -> Chosen[Any]:
        """Select the record and convert its options. Raises ConfigurationError if the name or an option is invalid."""
        provided = manager.provided(self.kind, self.name)
        options = provided.record.options
        unused = not_needed(options, self.given) if self.kind is RendezvousBackendRecord else ()
        given = {name: value for name, value in self.given.items() if name not in unused}
        for name in [SECRET] if options is None else [option.name for option in options]:
            if self.flags.get(name) is not None and find_option(given, name) is None:
                given[name] = self.flags[name]
        values, problems = type_options(options, given, self.origin)
        if problems:
            raise ConfigurationError(*problems)
        return Chosen(provided.record, provided.source, values)
