"""Reading the commands beside `run`: a few flags, those of `run` under the same names, variables and file keys."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastic_core.config.explain import command_help
from elastic_core.config.reading import parse_found
from elastic_core.config.settings import SPECS
from elastic_core.config.spec import Findings, Spec, specs_of_options
from elastic_core.errors import ConfigurationError, PluginError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.config.reading import Sources
    from elastic_core.errors import ExitCode
    from elastic_core.hooks.records import CommandRecord, Option


@dataclass(frozen=True)
class Command:
    """What a command takes.

    Args:
        name: the word after `elastic`.
        about: the head of its help text.
        shared: settings of `run` that it also takes, each with its help here; empty: its help in `run`.
        own: flags of the command alone, which are neither variables nor file keys.
        operands: names of the words that it needs, in this order.
        example: a whole command line, for the help.
        codes: exit codes that mean something special here.
        alone: it reads neither variables nor files, so that it works while these are wrong.
    """

    name: str
    about: str
    shared: Mapping[str, str]
    own: tuple[Spec, ...] = ()
    operands: tuple[str, ...] = ()
    example: str = ""
    codes: Mapping[ExitCode, str] = field(default_factory=dict)
    alone: bool = False

    @functools.cached_property
    def specs(self) -> dict[str, Spec]:
        """Every setting and flag that it takes, by name."""
        shared = {name: replace(SPECS[name], help=told or SPECS[name].help) for name, told in self.shared.items()}
        everywhere = {name: SPECS[name] for name in ("plugins", "config")}
        return {**shared, **everywhere, **{spec.name: spec for spec in self.own}}

    @property
    def words(self) -> str:
        """The command as users write it."""
        return f"elastic {self.name}"

    def help_text(self) -> str:
        """What `--help` prints."""
        return command_help(self.about, self.specs.values(), self.example or self.words, self.codes)


@dataclass(frozen=True)
class CommandReading:
    """The outcome: every value by the setting's name, typed, defaults filled in; the operands; and the files and
    variables that were found and not used."""

    values: Mapping[str, Any]
    operands: tuple[str, ...]
    left_out: Sequence[Problem] = ()


def command_of(record: CommandRecord, added: Sequence[Option]) -> Command:
    """What the command of a plugin takes, with the help that is made from its record. `added`: the options that the
    plugin adds to `elastic run`, which are flags here, too. Raises PluginError."""
    if unknown := [name for name in record.settings if name not in SPECS]:
        found = f"expected names of settings from the command {record.name!r}, found {', '.join(unknown)}"
        raise PluginError(Problem(f"elastic {record.name}", found))
    own = [replace(spec, group="own", flag_only=True) for spec in specs_of_options(record.options or ()).values()]
    words = " ".join([f"elastic {record.name}", *record.operands])
    about = f"usage: {words} [flags]\n\n{record.summary}\n"
    shared = dict.fromkeys((*record.settings, "log_format", "log_level"), "")
    flags = (*specs_of_options(added).values(), *own)
    return Command(record.name, about, shared, flags, record.operands, words)


def read_command(
    command: Command,
    sources: Sources,
    added_options: Sequence[Option] = (),
    required: Mapping[str, str] | None = None,
) -> CommandReading:
    """Read one command line, with the environment and the config file as for `run`.

    Args:
        sources: `-h` and `--help` are skipped.
        added_options: options that plugins add to `run`; the variables and file keys of these are no mistakes.
        required: settings that must not be empty, with what to say if they are.

    Raises:
        ConfigurationError: with every problem.
    """
    line = sources.line(command.specs)
    known = {**SPECS, **specs_of_options(added_options)}
    gathered = Findings(line.found, line.problems) if command.alone else sources.gathered(line, known)
    values, unreadable = parse_found(gathered.found, command.specs)
    problems = [*gathered.problems, *unreadable.values()]
    told = {problem.origin for problem in problems}
    for name, message in (required or {}).items():
        flag = command.specs[name].flag
        if not values[name] and name not in unreadable and flag not in told:
            problems.append(Problem(flag, message))
    if len(line.words) != len(command.operands) and line.certain:
        expected, found = " ".join(command.operands) or "nothing but flags", " ".join(line.words) or "nothing"
        message = f"expected {expected}, found {found}; see {command.words} --help"
        problems.append(Problem(command.words, message))
    if problems:
        raise ConfigurationError(*problems, *gathered.left_out)
    return CommandReading(values, tuple(line.words), gathered.left_out)
