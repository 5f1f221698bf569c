"""The declaration of a setting, its names in each source, and the values found in a source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.errors import Problem
from elastic_core.parsing import Parser, parse_boolean, parser_of

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_core.hooks.records import Option

D = TypeVar("D")
T = TypeVar("T")

GROUPS = ("nodes", "rendezvous", "workers", "output", "stopping", "watching", "plugins", "configuration")
"""The groups of the help text, in order."""


class Reason(str):
    """The origin of a value that no source sets: why the setting has this value."""


DEFAULT = Reason("default")
"""The origin of a setting's default."""

Origins = Mapping[str, str]
Changes = Mapping[str, tuple[Any, str]]
"""New values by setting, each with a reason, which becomes the value's origin."""


def with_origins(problems: Iterable[Problem], origins: Origins) -> tuple[Problem, ...]:
    """Return the problems with the origins of the values that sources set, instead of their flags. Rules, backends and
    factories know only the flags."""
    sources = {f"--{name.replace('_', '-')}": it for name, it in origins.items() if not isinstance(it, Reason)}
    parts = [(problem.origin.partition(":"), problem.message) for problem in problems]
    return tuple(Problem(sources.get(flag, flag) + colon + option, text) for (flag, colon, option), text in parts)


@dataclass(frozen=True)
class Spec:
    """The declaration of one setting.

    Args:
        metavar: empty for switches (flags without a value).
        aliases: short keys in config files.
        torchrun: whether the setting is also read from `PET_<NAME>`.
        also_reads: torchrun's special variables for the setting, each with a function that converts the variable's
            string to the setting's string. An empty result leaves the setting unset.
        fallbacks: variables that a config file overrides.
        adds_up: whether the values of repeated flags are combined; otherwise, the last flag wins.
        flag_only: whether the setting has no variables and no config file key.
    """

    name: str
    parse: Callable[[object], Any]
    default: Any
    group: str
    help: str
    metavar: str = ""
    unit: str = ""
    short: str = ""
    aliases: tuple[str, ...] = ()
    torchrun: bool = True
    adds_up: bool = False
    also_reads: Mapping[str, Callable[[str], str]] = field(default_factory=dict)
    fallbacks: tuple[str, ...] = ()
    flag_only: bool = False

    @property
    def flag(self) -> str:
        """The long flag, with dashes."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        """Whether the flag needs no value. `--standalone` is such a switch, and `--standalone=false` turns it off."""
        return self.parse is parse_boolean

    def own_variables(self) -> tuple[str, ...]:
        """Return the environment variables named after this setting, in order of precedence."""
        names = (f"ELASTIC_{self.name.upper()}", f"PET_{self.name.upper()}")
        return () if self.flag_only else names if self.torchrun else names[:1]

    def variables(self) -> tuple[str, ...]:
        """Return all environment variables from which this setting is read, in order of precedence."""
        return (*self.own_variables(), *self.also_reads, *self.fallbacks)


@dataclass(frozen=True)
class RawValue:
    """A value from a source, before it is parsed."""

    raw: object
    origin: str


@dataclass
class Findings:
    """The values and problems found in the sources. `by_backend` contains the config file's options for each backend,
    of which only those of the selected backend are used. `left_out` lists the files and variables that were ignored."""

    found: dict[str, RawValue] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    config_file: Path | None = None
    by_backend: dict[str, RawValue] = field(default_factory=dict)
    left_out: list[Problem] = field(default_factory=list)


def setting(
    default: D,
    parse: Parser[T],
    group: str,
    help: str,  # noqa: A002
    metavar: str = "",
    **more: Any,
) -> D | T:
    """Declare a field of `Settings`. `more` contains further fields of the setting's `Spec`."""
    metadata = {"spec": Spec("", parse, default, group, help, metavar, **more)}
    if isinstance(default, dict):
        empty: D = field(default_factory=dict, metadata=metadata)  # type: ignore[assignment]
        return empty
    return field(default=default, metadata=metadata)


def specs_of(settings_class: type[Any]) -> dict[str, Spec]:
    """Return the specs of a dataclass whose fields were declared with `setting`, by name, in field order."""
    return {item.name: replace(item.metadata["spec"], name=item.name) for item in fields(settings_class)}


_METAVARS: dict[type, str] = {str: "TEXT", int: "N", float: "NUMBER", bool: ""}


def specs_of_options(options: Iterable[Option]) -> dict[str, Spec]:
    """Return the specs of options that plugins add to the command line, by name with underscores."""
    specs = {}
    for option in options:
        name = option.name.replace("-", "_")
        metavar = "S" if option.unit == "seconds" else _METAVARS[option.type]
        parse = parser_of(option)
        specs[name] = Spec(name, parse, option.default, "plugins", option.help, metavar, option.unit, torchrun=False)
    return specs
