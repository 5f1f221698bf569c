"""Choosing a record by its name. Never the last one in silence: two providers are an error, so is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from elastic_core.errors import PluginError, Problem
from elastic_core.hooks.discovery import CORE, DISABLE_VARIABLE, Failure, Source
from elastic_core.hooks.names import did_you_mean, normalised

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from elastic_core.hooks.kinds import Kind
    from elastic_core.hooks.records import Option, Record

T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R", bound="Record")


@dataclass(frozen=True)
class Provided(Generic[T_co]):
    """A record (or an option) and who brought it."""

    record: T_co
    source: Source


@dataclass(frozen=True)
class Conflict:
    """A name that several plugins provide. It is an error once the name is selected, and not before."""

    noun: str
    name: str
    sources: tuple[Source, ...]

    @property
    def losers(self) -> tuple[Source, ...]:
        """Those whose fault it can be: all but the core."""
        return tuple(source for source in self.sources if source.distribution != CORE) or self.sources

    def __str__(self) -> str:
        providers = " and ".join(source.described for source in self.sources)
        return f"the {self.noun} {self.name!r} is provided by {providers}; uninstall one, or block one: {self.remedy}"

    @property
    def remedy(self) -> str:
        """A value of the block list that ends the conflict, as a shell assignment."""
        distributions = {normalised(source.distribution) for source in self.sources}
        last = self.losers[-1]
        return f"{DISABLE_VARIABLE}={last.distribution if len(distributions) > 1 else last.plugin}"


def names_of(record: Record) -> tuple[str, ...]:
    """The record's name, then its aliases."""
    return tuple(dict.fromkeys((record.name, *record.aliases)))


def conflicts(kind: Kind, provided: Iterable[Provided[Record]]) -> tuple[Conflict, ...]:
    """The names of one kind that are provided more than once, aliases included."""
    return _contested(kind.noun, ((name, item.source) for item in provided for name in names_of(item.record)))


def option_conflicts(options: Sequence[Provided[Option]], reserved: Mapping[str, Source]) -> tuple[Conflict, ...]:
    """The options of `elastic run` that several plugins add, or that have a `reserved` name, under their normalised
    names (as those of `reserved` must be)."""
    added = [(normalised(item.record.name), item.source) for item in options]
    taken = {name: reserved[name] for name, _ in added if name in reserved}
    return _contested("option", [*added, *taken.items()])


def _contested(noun: str, pairs: Iterable[tuple[str, Source]]) -> tuple[Conflict, ...]:
    providers: dict[str, list[Source]] = {}
    for name, source in pairs:
        providers.setdefault(name, []).append(source)
    found = [(name, sources) for name, sources in sorted(providers.items()) if len(sources) > 1]
    return tuple(Conflict(noun, name, tuple(sorted(sources))) for name, sources in found)


def select(
    kind: Kind,
    provided: Sequence[Provided[R]],
    name: str,
    origin: str,
    failures: Sequence[Failure],
    blocked: Sequence[Source],
) -> Provided[R]:
    """The only record of that name or alias.

    Raises:
        PluginError: several plugins provide the name, or none does; the message says what to do.
    """
    matches = [item for item in provided if name in names_of(item.record)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        conflict = Conflict(kind.noun, name, tuple(sorted(item.source for item in matches)))
        raise PluginError(Problem(origin, str(conflict)))
    raise PluginError(Problem(origin, "\n  ".join(_unknown(kind, provided, name, failures, blocked))))


def _unknown(
    kind: Kind,
    provided: Sequence[Provided[R]],
    name: str,
    failures: Sequence[Failure],
    blocked: Sequence[Source],
) -> Iterator[str]:
    known = {known_name for item in provided for known_name in names_of(item.record)}
    hint = "" if name in kind.homes else did_you_mean(name, known | set(kind.homes))
    yield f"there is no {kind.noun} {name!r} here{hint}"
    here = [f"{'/'.join(names_of(item.record))} ({item.source})" for item in provided]
    yield f"installed: {', '.join(sorted(here)) or 'none'}"
    yield from (f"failed to load: {failure}" for failure in failures)
    yield from (f"blocked by {DISABLE_VARIABLE}: {source.described}" for source in blocked)
    home = kind.homes.get(name)
    present = {normalised(source.distribution) for source in (*blocked, *(failure.source for failure in failures))}
    if home is not None and home not in present:
        yield f"to get it: pip install {home}"
