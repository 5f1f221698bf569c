"""Reads the configuration from all sources. The outcome is either one result or one error that lists every problem.

Precedence: flag, `ELASTIC_` variable, `PET_` variable, torchrun's special variables, config file, `LOGLEVEL`, a
scheduler's variables (see `resolve`), default. Only the value with the highest precedence is parsed, so an invalid
value that is overridden is not reported. Values from different sources are not merged: repeated `--rdzv-conf` flags are
combined, but they replace all options in a config file. A setting is also overridden by one that contradicts it:
`--nnodes=2` overrides `standalone = true` in the file.

`read_command` reads the command lines of all commands except `run` and those that are `like_run`. Flags that a command
shares with `run` have the same names, variables and config file keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastic_core.config.resolve import (
    broken_rules,
    resolved,
    scheduler_problems,
    script_problems,
    with_backend,
    without_effect,
)
from elastic_core.config.settings import SPECS, Settings
from elastic_core.config.sources import RENDEZVOUS, RUN, config_file, fallbacks, from_command_line, from_environment
from elastic_core.config.spec import DEFAULT, Findings, Origins, RawValue, Spec, specs_of_options
from elastic_core.errors import ConfigurationError, PluginError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from elastic_core.config.resolve import BackendNamed
    from elastic_core.config.sources import CommandLine, ConfigFile
    from elastic_core.hooks.records import CommandRecord, Option, RendezvousBackendRecord


_ALIASES = {alias for spec in SPECS.values() for alias in spec.aliases}
_OF_COMMANDS = ("help", "json", "timeout", "deadline")
RESERVED: frozenset[str] = frozenset({*SPECS, *_ALIASES, *_OF_COMMANDS, "disable_plugins", RENDEZVOUS})
"""Names that a plugin's option must not use: the names of our settings, keys, flags and variables."""


@dataclass(frozen=True)
class Reading:
    """The outcome of `read` and `read_command`.

    Attributes:
        settings: every setting, typed and resolved. Settings that the command does not accept have their defaults.
        words: the script and its arguments, unchanged, or the command's operands.
        origins: the source of every setting and added option.
        config_file: the config file, if one was read.
        added: typed values of the options that plugins added, by declared name; options that are not set have their
            defaults.
        own: values of the command's own flags, by name; flags that are not set have their defaults.
        tables: the backends for which the config file has options, each with the origin of its table.
        left_out: files and variables that were ignored, with the reasons.
        problems: the problems with the script, if none is required.
    """

    settings: Settings
    words: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    config_file: Path | None = None
    added: Mapping[str, object] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[Problem] = ()
    problems: Sequence[Problem] = ()

    @property
    def script(self) -> str | None:
        """The script to start; None only if no script was required."""
        return self.words[0] if self.words else None

    @property
    def script_args(self) -> tuple[str, ...]:
        """The script's arguments."""
        return self.words[1:]


class Sources:
    """The sources of a command's configuration: the command line, the environment and the config file.

    Plugins add flags, so the sources are read in two steps. The first step reads the settings that determine which
    plugins are loaded. The second step reads all settings.

    Args:
        argv: the words after `elastic COMMAND`.
        environ: the environment to read, instead of `os.environ`.
        cwd: an absolute folder; the paths of the config file and the script are relative to it.
        command: the command's name. In commands other than `elastic run`, flags may follow other words.
    """

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], cwd: Path, command: str = RUN) -> None:
        self.environ = environ
        self.cwd = cwd
        self._argv = argv
        self._command = command
        self._line: CommandLine | None = None
        self._files: dict[object, ConfigFile] = {}  # by the value of --config

    def like_run(self) -> Sources:
        """Return the same sources, with the command line read as that of `elastic run`. Files are not read again."""
        if self._command == RUN:
            return self
        other = Sources(self._argv, self.environ, self.cwd)
        other._files = self._files
        return other

    def allowed_plugins(self, specs: Mapping[str, Spec]) -> tuple[str, ...] | None:
        """Return the distributions whose plugins the `plugins` setting allows, or None if all are allowed.

        `specs` contains the command's flags. If the command line has an unknown flag, which a plugin may add, the
        result is a guess. The caller must then compare it with the value from the complete reading.

        Raises:
            ConfigurationError: the value is not a list of names.
        """
        values, unreadable = parse_found(self.gathered(self.line(specs), BEFORE_PLUGINS).found, BEFORE_PLUGINS)
        if "plugins" in unreadable:
            raise ConfigurationError(unreadable["plugins"])
        allowed: tuple[str, ...] | None = values["plugins"]
        return allowed

    def line(self, specs: Mapping[str, Spec]) -> CommandLine:
        """Return the command line, read once if all flags are known. `specs` contains the command's flags."""
        if self._line is None or not self._line.certain:
            self._line = from_command_line(self._argv, specs, self._command)
        return self._line

    def gathered(self, line: CommandLine, specs: Mapping[str, Spec]) -> Findings:
        """Return each setting's value from the source with the highest precedence, and the problems of all sources."""
        environment = from_environment(self.environ, specs)
        named = line.found.get("config") or environment.found.get("config")
        if named not in self._files:
            self._files[named] = config_file(named, self.cwd, self.environ.get("HOME", ""))
        file = self._files[named].findings(specs)
        of_others = fallbacks(self.environ, specs)
        _, unreadable = parse_found(of_others, specs)
        readable = {name: value for name, value in of_others.items() if name not in unreadable}
        left_out = [*environment.left_out, *file.left_out]
        found: dict[str, RawValue] = {}
        for values in (line.found, environment.found, file.found, readable):
            higher = dict(found)
            for name, value in values.items():
                if name in higher:
                    continue
                if (winner := _winner(name, value, higher)) is None:
                    found[name] = value
                else:
                    left_out.append(Problem(value.origin, f"overridden by {winner.origin}"))
        left_out += [problem for name, problem in unreadable.items() if name not in found]
        problems = [*line.problems, *environment.problems, *file.problems]
        return Findings(found, problems, file.config_file, file.by_backend, left_out)


_OVERRIDES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("nnodes", "rdzv_backend", "rdzv_endpoint", "master_addr"), ("standalone",)),
    "standalone": ("nnodes", "node_rank"),
    "default nnodes": ("node_rank",),
    "health_port": ("default health",),
    "module": ("no_python", "run_path"),
    "no_python": ("module", "run_path"),
    "warm_start": ("worker_starter", "worker_starter_conf"),
    "worker_starter": ("warm_start",),
}
"""For each setting, the settings that it contradicts. It overrides them if they are from a source with lower
precedence. `default` before a name means the default as an explicit value, such as `--nnodes=1`."""
_CONTRADICTING = {label.removeprefix("default ") for one, others in _OVERRIDES.items() for label in (one, *others)}


def _winner(name: str, value: RawValue, higher: Mapping[str, RawValue]) -> RawValue | None:
    """Return the value from a source with higher precedence that contradicts this one, or None."""
    label = _label(name, value)
    return next((found for other, found in higher.items() if label in _OVERRIDES.get(_label(other, found), ())), None)


def _label(name: str, value: RawValue) -> str:
    """Return the setting's name as in `_OVERRIDES`."""
    if name not in _CONTRADICTING:
        return name
    try:
        return f"default {name}" if SPECS[name].parse(value.raw) == SPECS[name].default else name
    except ValueError:
        return name


BEFORE_PLUGINS = {name: SPECS[name] for name in ("plugins", "config")}
"""The settings that determine which plugins are loaded."""
_SCRIPT = {"module", "no_python", "run_path"}  # the settings that determine what the script is
_OF_LOG = {
    "log_format": replace(SPECS["log_format"], help="format of the log on stderr"),
    "log_level": replace(SPECS["log_level"], help="minimum level of log messages"),
}


def random_run_id() -> str:
    """Generate a unique run id of 16 hexadecimal digits."""
    return os.urandom(8).hex()


def read(
    sources: Sources,
    added_options: Sequence[Option] = (),
    *,
    new_run_id: Callable[[], str] = random_run_id,
    require_script: bool = True,
    own: Sequence[Spec] = (),
    backend_named: BackendNamed = lambda _: None,
    others: Callable[[Reading], Sequence[Problem]] = lambda _: (),
) -> Reading:
    """Read the configuration of one `elastic run`.

    Args:
        sources: what to read; `-h` and `--help` are skipped.
        added_options: options that plugins add, with flags, `ELASTIC_` variables and config file keys. Their names must
            not be `RESERVED`.
        new_run_id: generates the run id of a single-node job.
        require_script: whether a script must be given and must exist. Otherwise, if the only problem is that the script
            does not exist, it is in the result's `problems`.
        own: the command's own flags, which have no variables or config file keys.
        backend_named: returns the record of the backend with this name, or None if it does not exist.
        others: called if there are problems; returns additional problems to report.

    Raises:
        ConfigurationError: lists every problem, in the order of the sources.
    """
    specs = {**SPECS, **specs_of_options(added_options)}
    parsed = {**specs, **{spec.name: spec for spec in own}}
    line, environ = sources.line(parsed), sources.environ
    gathered = sources.gathered(line, specs)
    reading, given, record, unreadable = _read(
        line.words, gathered, parsed, added_options, environ, new_run_id, backend_named
    )
    broken = broken_rules(reading.settings, unreadable, reading.origins, record)
    problems = [*gathered.problems, *unreadable.values(), *broken]
    problems += scheduler_problems(given, reading.origins, environ, broken)
    about_script: list[Problem] = []
    if (require_script or reading.script) and line.certain and not _SCRIPT & unreadable.keys():
        about_script = script_problems(reading.script, reading.settings, environ, sources.cwd)
    if require_script or problems:
        problems += about_script
    if problems:
        known = {problem.origin for problem in problems}
        problems += [other for other in others(reading) if other.origin not in known]
        raise ConfigurationError(*problems, *gathered.left_out)  # an ignored file or variable may be the cause
    return replace(reading, problems=about_script)


def _read(
    words: Iterable[str],
    gathered: Findings,
    specs: Mapping[str, Spec],
    added_options: Sequence[Option],
    environ: Mapping[str, str],
    new_run_id: Callable[[], str | None],
    backend_named: BackendNamed,
) -> tuple[Reading, Settings, RendezvousBackendRecord | None, dict[str, Problem]]:
    """Type and resolve the values of the settings and flags in `specs`. Returns the outcome, the settings before they
    were resolved, the backend's record, and the problems by setting."""
    values, unreadable = parse_found(gathered.found, specs)
    given = Settings(**{name: values[name] for name in SPECS if name in specs})
    known = {name: found.origin for name, found in gathered.found.items() if name in specs}
    origins: Origins = {**dict.fromkeys((*SPECS, *specs), DEFAULT), **known}
    settings, origins, record, unreadable_options = _with_backend_options(
        *with_backend(given, origins, environ), gathered if "rdzv_conf" in specs else Findings(), backend_named
    )
    settings, origins = resolved(settings, origins, record, new_run_id)
    added = {option.name: values[option.name.replace("-", "_")] for option in added_options}
    reading = Reading(
        settings=settings,
        words=tuple(words),
        origins={name: origins[name.replace("-", "_")] for name in (*SPECS, *added)},
        config_file=gathered.config_file,
        added=added,
        own={name: values[name] for name, spec in specs.items() if spec.flag_only},
        tables={name: found.origin for name, found in gathered.by_backend.items()},
        left_out=[*gathered.left_out, *without_effect(settings, origins)],
    )
    return reading, given, record, unreadable | unreadable_options


def _with_backend_options(
    settings: Settings, origins: Origins, gathered: Findings, backend_named: BackendNamed
) -> tuple[Settings, Origins, RendezvousBackendRecord | None, dict[str, Problem]]:
    """Set `rdzv_conf`, if it is unset, to the options in the config file's table for the backend. The table may have
    any of the backend's names. Also returns the backend's record, and the problems by setting."""
    backend = settings.rdzv_backend
    record = backend_named(backend)
    names = dict.fromkeys((backend, record.name, *record.aliases) if record is not None else (backend,))
    tables = [gathered.by_backend[name] for name in names if name in gathered.by_backend]
    if not tables or "rdzv_conf" in gathered.found:
        return settings, origins, record, {}
    if len(tables) > 1:
        message = f"{tables[0].origin} contains options for the same backend; merge the tables"
        return settings, origins, record, {"rdzv_conf": Problem(tables[1].origin, message)}
    options, unreadable = parse_found({"rdzv_conf": tables[0]}, {"rdzv_conf": SPECS["rdzv_conf"]})
    return replace(settings, **options), {**origins, "rdzv_conf": tables[0].origin}, record, unreadable


def settings_from(values: Mapping[str, object], backend_named: BackendNamed = lambda _: None) -> Settings:
    """Create settings from Python values. They are parsed, checked and resolved like values from any other source.

    A value may already be typed, a string such as `nnodes="1:4"`, or a `RawValue` with an origin. Settings without a
    value have their defaults.

    Raises:
        ConfigurationError: lists every problem. The origin of a value other than a `RawValue` is the setting's name.
    """
    found = {name: raw if isinstance(raw, RawValue) else RawValue(raw, name) for name, raw in values.items()}
    problems = [Problem(name, "unknown setting") for name in found.keys() - SPECS]
    reading, _, record, unreadable = _read((), Findings(found), SPECS, (), {}, random_run_id, backend_named)
    problems += [*unreadable.values(), *broken_rules(reading.settings, unreadable, reading.origins, record)]
    if problems:
        raise ConfigurationError(*problems)
    return reading.settings


def parse_found(found: Mapping[str, RawValue], specs: Mapping[str, Spec]) -> tuple[dict[str, Any], dict[str, Problem]]:
    """Return every setting's typed value, or its default if there is no valid value, and the problems by setting."""
    values: dict[str, Any] = {name: spec.default for name, spec in specs.items()}
    unreadable = {}
    for name, spec in specs.items():
        if name not in found or (found[name].raw is None and spec.default is None):
            continue  # only Python code can pass None; the setting remains unset
        try:
            values[name] = spec.parse(found[name].raw)
        except ValueError as error:
            unreadable[name] = Problem(found[name].origin, str(error))
    return values, unreadable


def own_specs(record: CommandRecord) -> dict[str, Spec]:
    """Return the specs of a command's own flags, by name with underscores."""
    return {name: replace(spec, flag_only=True) for name, spec in specs_of_options(record.options or ()).items()}


def command_specs(record: CommandRecord, added: Sequence[Option] = ()) -> dict[str, Spec]:
    """Return the specs of all flags of a command, by name. `added` contains the options that its plugin adds to `run`.
    Raises PluginError if the record names an unknown setting."""
    texts = record.settings if isinstance(record.settings, Mapping) else dict.fromkeys(record.settings or (), "")
    if unknown := [name for name in texts if name not in SPECS]:
        message = f"the plugin's command {record.name!r} asks for unknown settings: {', '.join(unknown)}"
        raise PluginError(Problem(f"elastic {record.name}", message))
    shared = {name: replace(SPECS[name], help=text or SPECS[name].help) for name, text in texts.items()}
    logged = {} if record.settings is None else _OF_LOG
    settings = SPECS if record.like_run else {**shared, **logged, **BEFORE_PLUGINS}
    return {**settings, **specs_of_options(added), **own_specs(record)}


def read_command(
    record: CommandRecord,
    sources: Sources,
    added_options: Sequence[Option] = (),
    own_options: Sequence[Option] = (),
    backend_named: BackendNamed = lambda _: None,
) -> Reading:
    """Read a command's configuration from the command line, the environment and the config file.

    Args:
        sources: what to read; `-h` and `--help` are skipped.
        added_options: options that plugins add to `run`; their variables and config file keys are also valid.
        own_options: those of them that the command's plugin adds; their flags are also valid.
        backend_named: see `read`.

    Raises:
        ConfigurationError: lists every problem.
    """
    of_command = command_specs(record, own_options)
    line = sources.line(of_command)
    of_plugins = specs_of_options(added_options)
    known = {**SPECS, **of_plugins}
    gathered = Findings(line.found, line.problems) if record.settings is None else sources.gathered(line, known)
    specs = {**of_plugins, **of_command}
    reading, _, _, unreadable = _read(line.words, gathered, specs, added_options, {}, lambda: None, backend_named)
    problems = [*gathered.problems, *unreadable.values()]
    reported = {problem.origin for problem in problems}
    for name, message in record.required.items():
        flag = SPECS[name].flag
        if not getattr(reading.settings, name) and name not in unreadable and flag not in reported:
            problems.append(Problem(flag, message))
    if len(line.words) != len(record.operands) and line.certain:
        expected, found = " ".join(record.operands) or "only flags", " ".join(line.words) or "nothing"
        words = f"elastic {record.name}"
        problems.append(Problem(words, f"expected {expected}, found {found}; see {words} --help"))
    if problems:
        raise ConfigurationError(*problems, *gathered.left_out)
    return reading
