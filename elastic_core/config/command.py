"""Reads the command lines of all commands except `run` and `explain`.

Flags that a command shares with `run` have the same names, variables and config file keys."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastic_core.config.reading import BEFORE_PLUGINS, parse_found
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
    """A command's arguments and help text.

    Args:
        name: the word after `elastic`.
        about: the beginning of the help text.
        shared: settings of `run` that the command also accepts, with help texts (empty for the same text as in `run`).
        own: the command's own flags, which have no variables or config file keys.
        operands: names of the required positional arguments.
        example: a complete command line for the help text.
        codes: exit codes with a special meaning for this command.
        required: settings that must not be empty, each with the error message to show if it is empty.
        alone: whether to ignore environment variables and the config file, so that the command works even if they are
            invalid.
    """

    name: str
    about: str
    shared: Mapping[str, str]
    own: tuple[Spec, ...] = ()
    operands: tuple[str, ...] = ()
    example: str = ""
    codes: Mapping[ExitCode, str] = field(default_factory=dict)
    required: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False

    @functools.cached_property
    def specs(self) -> dict[str, Spec]:
        """All the command's settings and flags, by name."""
        shared = {name: replace(SPECS[name], help=text or SPECS[name].help) for name, text in self.shared.items()}
        return {**shared, **BEFORE_PLUGINS, **{spec.name: spec for spec in self.own}}

    @property
    def words(self) -> str:
        """The command's name as users type it."""
        return f"elastic {self.name}"

    def help_text(self) -> str:
        """Return the output of `--help`."""
        from elastic_core.config.explain import command_help

        return command_help(self.about, self.specs.values(), self.example or self.words, self.codes)


@dataclass(frozen=True)
class CommandReading:
    """The outcome of `read_command`: typed values (including defaults), operands, and ignored files and variables."""

    values: Mapping[str, Any]
    operands: tuple[str, ...]
    left_out: Sequence[Problem] = ()


def command_of(record: CommandRecord, added: Sequence[Option]) -> Command:
    """Return the `Command` for a plugin's record. The command also accepts `added`, the plugin's options for `run`.
    Raises PluginError if the record names an unknown setting."""
    if unknown := [name for name in record.settings if name not in SPECS]:
        message = f"the plugin's command {record.name!r} asks for unknown settings: {', '.join(unknown)}"
        raise PluginError(Problem(f"elastic {record.name}", message))
    own = [replace(spec, group="own", flag_only=True) for spec in specs_of_options(record.options or ()).values()]
    words = " ".join([f"elastic {record.name}", *record.operands])
    about = f"usage: {words} [flags]\n\n{record.summary}\n"
    shared = dict.fromkeys((*record.settings, "log_format", "log_level"), "")
    flags = (*specs_of_options(added).values(), *own)
    return Command(record.name, about, shared, flags, record.operands, words)


def read_command(command: Command, sources: Sources, added_options: Sequence[Option] = ()) -> CommandReading:
    """Read a command's configuration from the command line, the environment and the config file.

    Args:
        sources: what to read; `-h` and `--help` are skipped.
        added_options: options that plugins add to `run`; their variables and config file keys are also valid.

    Raises:
        ConfigurationError: lists every problem.
    """
    line = sources.line(command.specs)
    known = {**SPECS, **specs_of_options(added_options)}
    gathered = Findings(line.found, line.problems) if command.alone else sources.gathered(line, known)
    values, unreadable = parse_found(gathered.found, command.specs)
    problems = [*gathered.problems, *unreadable.values()]
    reported = {problem.origin for problem in problems}
    for name, message in command.required.items():
        flag = command.specs[name].flag
        if not values[name] and name not in unreadable and flag not in reported:
            problems.append(Problem(flag, message))
    if len(line.words) != len(command.operands) and line.certain:
        expected, found = " ".join(command.operands) or "only flags", " ".join(line.words) or "nothing"
        message = f"expected {expected}, found {found}; see {command.words} --help"
        problems.append(Problem(command.words, message))
    if problems:
        raise ConfigurationError(*problems, *gathered.left_out)
    return CommandReading(values, tuple(line.words), gathered.left_out)
