"""One reading of the configuration: all sources, one result, or one error that lists everything that is wrong.

Precedence: flag, `ELASTIC_` variable, `PET_` variable, torchrun's special variables, config file, `LOGLEVEL`, what a
scheduler says (see `schedulers`), default. Only the winning value of a setting is parsed: a bad value that is
overridden does no harm and is not reported. A stronger source replaces a weaker one whole: `--rdzv-conf` flags add up
among themselves, not with a file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastic_core.config.environment import fallbacks, from_environment
from elastic_core.config.file import from_file
from elastic_core.config.flags import CommandLine, scan
from elastic_core.config.resolve import DEFAULT, resolve
from elastic_core.config.rules import broken_rules
from elastic_core.config.schedulers import scheduler_problems, with_scheduler
from elastic_core.config.script import script_problem
from elastic_core.config.settings import SPECS, Settings
from elastic_core.config.sources import Found
from elastic_core.config.spec import Spec, specs_of_options
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.parsing import parse_boolean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from elastic_core.hooks.records import Option


RESERVED: frozenset[str] = frozenset(
    {*SPECS, *(alias for spec in SPECS.values() for alias in spec.aliases), "help", "json", "disable_plugins"}
)
"""Names that no plugin's option may have, in any spelling: those of our settings, keys, flags and variables."""


@dataclass(frozen=True)
class Reading:
    """The outcome of `read`.

    Attributes:
        settings: every setting, typed and resolved.
        script: what to start; None only when no script was required.
        script_args: its arguments, untouched.
        origins: for every setting and added option, where its value comes from.
        config_file: the file that was read, if there was one.
        added: the options that plugins added, by name as declared, typed, defaults filled in.
        own: the values of the flags that a command has beside those of `run`, by name, defaults filled in.
    """

    settings: Settings
    script: str | None
    script_args: tuple[str, ...]
    origins: Mapping[str, str]
    config_file: Path | None
    added: Mapping[str, object]
    own: Mapping[str, Any] = field(default_factory=dict)


def random_run_id() -> str:
    """A run id that nobody else has: 16 hexadecimal digits."""
    return os.urandom(8).hex()


def read(
    argv: Sequence[str],
    environ: Mapping[str, str],
    cwd: Path,
    added_options: Sequence[Option] = (),
    *,
    new_run_id: Callable[[], str] = random_run_id,
    require_script: bool = True,
    own: Sequence[Spec] = (),
) -> Reading:
    """Read the configuration of one `elastic run`.

    Args:
        argv: the words after `elastic run`. `-h` and `--help` are skipped; see `asks_for_help`.
        environ: the environment; no other is looked at.
        cwd: the absolute folder from which config file and script are looked up.
        added_options: options that plugins add: flags, `ELASTIC_` variables and file keys like our own. One whose
            name is `RESERVED` is left out.
        new_run_id: makes up the run id of a single node.
        require_script: false for `elastic explain`, which starts nothing: neither presence nor existence is checked.
        own: flags of the command that reads this, which are neither variables nor file keys.

    Raises:
        ConfigurationError: with every problem of this reading, in the order of the sources.
    """
    added_options = apart(added_options)
    specs = {**SPECS, **specs_of_options(added_options)}
    line = scan(argv, {**specs, **{spec.name: spec for spec in own}})
    environment = from_environment(environ, specs)
    file = from_file(line.found.get("config") or environment.found.get("config"), cwd, specs)
    weakest = fallbacks(environ, specs)
    problems = [*line.problems, *environment.problems, *file.problems]
    found = {**weakest.found, **file.found, **environment.found, **line.found}
    values, unreadable = parse_found(found, specs)
    origins = {name: found[name].origin if name in found else DEFAULT for name in specs}
    given = Settings(**{name: values[name] for name in SPECS})
    scheduled, said_by = with_scheduler(given, origins, environ)
    settings, origins = resolve(replace(given, **scheduled), {**origins, **said_by}, new_run_id)
    its_own, unreadable_own = parse_found(line.found, {spec.name: spec for spec in own})
    broken = broken_rules(settings, unreadable)
    problems += [*unreadable.values(), *unreadable_own.values(), *broken]
    problems += scheduler_problems(given, origins, environ, broken)
    if require_script:
        problems += _script_problems(line, settings, unreadable, environ, cwd)
    if problems:
        raise ConfigurationError(*problems)
    return Reading(
        settings=settings,
        script=line.script,
        script_args=line.script_args,
        origins=_as_declared(origins, added_options),
        config_file=file.path,
        added={option.name: values[_key(option)] for option in added_options},
        own=its_own,
    )


def asks_for_help(argv: Sequence[str], added_options: Sequence[Option] = ()) -> bool:
    """Whether `-h` or `--help` stands among our flags (after the script it belongs to the script)."""
    return scan(argv, {**SPECS, **specs_of_options(apart(added_options))}).help


def take_switch(name: str, argv: Sequence[str], added_options: Sequence[Option] = ()) -> tuple[bool, list[str]]:
    """Whether the switch `--name`, which is no setting, stands among our flags; and the words without it."""
    switch = Spec(name, parse_boolean, False, "configuration", "")
    line = scan(argv, {**SPECS, **specs_of_options(apart(added_options)), name: switch})
    ours = len(argv) - len(line.script_args) - (line.script is not None)
    flags = [word for word in argv[:ours] if word != switch.flag]
    return len(flags) < ours, [*flags, *argv[ours:]]


def settings_from(values: Mapping[str, object], new_run_id: Callable[[], str] = random_run_id) -> Settings:
    """Settings from Python values, under the rules of every other source: typed, checked and resolved.

    Values may be finished ones or text, such as `nnodes="1:4"`; a `Found` says where it comes from. Those not given
    have their defaults.

    Raises:
        ConfigurationError: with every problem; origins are the settings' names where the values do not say.
    """
    found = {name: raw if isinstance(raw, Found) else Found(raw, name) for name, raw in values.items()}
    problems = [Problem(name, "expected the name of a setting, found an unknown one") for name in found.keys() - SPECS]
    parsed, unreadable = parse_found(found, SPECS)
    origins = {name: name if name in found else DEFAULT for name in SPECS}
    settings, _ = resolve(Settings(**parsed), origins, new_run_id)
    problems += [*unreadable.values(), *broken_rules(settings, unreadable)]
    if problems:
        raise ConfigurationError(*problems)
    return settings


def _key(option: Option) -> str:
    return option.name.replace("-", "_")


def _as_declared(origins: Mapping[str, str], options: Sequence[Option]) -> dict[str, str]:
    names = {_key(option): option.name for option in options}
    return {names.get(name, name): origin for name, origin in origins.items()}


def apart(options: Sequence[Option]) -> list[Option]:
    """Those with names of their own; the manager of plugins tells of the others."""
    return [option for option in options if _key(option).lower() not in RESERVED]


def parse_found(found: Mapping[str, Found], specs: Mapping[str, Spec]) -> tuple[dict[str, Any], dict[str, Problem]]:
    """The typed value of every setting, the default where none was found or the one found is unreadable."""
    values: dict[str, Any] = {name: spec.default for name, spec in specs.items()}
    unreadable = {}
    for name, spec in specs.items():
        if name not in found or (found[name].raw is None and spec.default is None):
            continue  # None comes from Python values only: left unset on purpose
        try:
            values[name] = spec.parse(found[name].raw)
        except ValueError as error:
            unreadable[name] = Problem(found[name].origin, str(error))
    return values, unreadable


def _script_problems(
    line: CommandLine, settings: Settings, unreadable: Mapping[str, Problem], environ: Mapping[str, str], cwd: Path
) -> list[Problem]:
    how = {"module", "no_python", "run_path"}
    if not line.certain or how & unreadable.keys():
        return []
    problem = script_problem(line.script, settings, environ, cwd)
    return [] if problem is None else [problem]
