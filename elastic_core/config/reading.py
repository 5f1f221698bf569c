"""One reading of the configuration: all sources, and one result or one error that lists every problem.

Precedence: flag, `ELASTIC_` variable, `PET_` variable, torchrun's special variables, config file, `LOGLEVEL`, a
scheduler's variables (see `schedulers`), default. Only the strongest value of a setting is parsed: a bad value that is
overridden is not reported. A stronger source replaces a weaker one as a whole: `--rdzv-conf` flags add up among
themselves, but not with a file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastic_core.config.environment import fallbacks, from_environment
from elastic_core.config.file import RENDEZVOUS, from_file
from elastic_core.config.flags import CommandLine, scan
from elastic_core.config.resolve import resolve
from elastic_core.config.rules import broken_rules, script_problems
from elastic_core.config.schedulers import scheduler_problems
from elastic_core.config.settings import SPECS, Settings
from elastic_core.config.spec import DEFAULT, Findings, Found, Spec, specs_of_options
from elastic_core.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from elastic_core.config.resolve import BackendNamed
    from elastic_core.hooks.records import Option


RESERVED: frozenset[str] = frozenset(
    {
        *SPECS,
        *(alias for spec in SPECS.values() for alias in spec.aliases),
        "help",
        "json",
        "disable_plugins",
        RENDEZVOUS,
    }
)
"""Names that no option of a plugin may have: those of our settings, keys, flags and variables."""


@dataclass(frozen=True)
class Reading:
    """The outcome of `read`.

    Attributes:
        settings: every setting, typed and resolved.
        script: what to start; None only when no script was required.
        script_args: its arguments, untouched.
        origins: for every setting and added option, where its value comes from.
        config_file: the file that was read, if there was one.
        added: values of the options that plugins added, by declared name, typed, defaults filled in.
        own: values of the flags that a command has beside those of `run`, by name, defaults filled in.
        tables: the names of backends for which the file has options, with the place of each.
        left_out: files and variables that were found and not used, with the reasons.
    """

    settings: Settings
    script: str | None
    script_args: tuple[str, ...]
    origins: Mapping[str, str]
    config_file: Path | None
    added: Mapping[str, object]
    own: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[Problem] = ()


def random_run_id() -> str:
    """A run id that no other job has: 16 hexadecimal digits."""
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
    backend_named: BackendNamed = lambda _: None,
    others: Callable[[Settings, Mapping[str, str], Mapping[str, str]], Sequence[Problem]] = lambda *_: (),
) -> Reading:
    """Read the configuration of one `elastic run`.

    Args:
        argv: the words after `elastic run`. `-h` and `--help` are skipped; see `asks_for_help`.
        environ: the environment; no other is looked at.
        cwd: the absolute folder from which config file and script are looked up.
        added_options: options that plugins add: flags, `ELASTIC_` variables and file keys like our own. None has a
            name that is `RESERVED`.
        new_run_id: generates the run id of a single node.
        require_script: whether there must be a script, and whether it must exist; false where nothing is started.
        own: flags of the command that reads this, which are neither variables nor file keys.
        backend_named: the backend of that name, for its defaults and problems; None if there is none.
        others: called with settings, origins and the tables of backends; returns further problems to report with these.

    Raises:
        ConfigurationError: with every problem of this reading, in the order of the sources.
    """
    specs = {**SPECS, **specs_of_options(added_options)}
    own_specs = {spec.name: spec for spec in own}
    line = scan(argv, {**specs, **own_specs})
    sources = gathered(line, environ, cwd, specs)
    values, unreadable = parse_found(sources.found, specs)
    its_own, unreadable_own = parse_found(line.found, own_specs)
    given = Settings(**{name: values[name] for name in SPECS})
    origins = {name: sources.found[name].origin if name in sources.found else DEFAULT for name in specs}
    settings, resolved = resolve(given, origins, new_run_id, environ, backend_named)
    table = sources.by_backend.get(settings.rdzv_backend)
    if table is not None and "rdzv_conf" not in sources.found:
        options, unreadable_options = parse_found({"rdzv_conf": table}, {"rdzv_conf": SPECS["rdzv_conf"]})
        unreadable |= unreadable_options
        given, origins = replace(given, **options), {**origins, "rdzv_conf": table.origin}
        settings, resolved = resolve(given, origins, new_run_id, environ, backend_named)
    origins = resolved
    broken = broken_rules(settings, unreadable, _places(sources.found), backend_named(settings.rdzv_backend))
    problems = [*sources.problems, *unreadable.values(), *unreadable_own.values(), *broken]
    problems += scheduler_problems(given, origins, environ, broken)
    script = line.words[0] if line.words else None
    if require_script and line.certain and not {"module", "no_python", "run_path"} & unreadable.keys():
        problems += script_problems(script, settings, environ, cwd)
    tables = {name: found.origin for name, found in sources.by_backend.items()}
    if problems:
        known = {problem.origin for problem in problems}
        problems += [other for other in others(settings, origins, tables) if other.origin not in known]
        raise ConfigurationError(*problems, *sources.left_out)  # what is missing may stand there
    added = {option.name: values[option.name.replace("-", "_")] for option in added_options}
    return Reading(
        settings=settings,
        script=script,
        script_args=tuple(line.words[1:]),
        origins={name: origins[name.replace("-", "_")] for name in (*SPECS, *added)},
        config_file=sources.config_file,
        added=added,
        own=its_own,
        tables=tables,
        left_out=sources.left_out,
    )


def allowed_plugins(
    argv: Sequence[str], environ: Mapping[str, str], cwd: Path, specs: Mapping[str, Spec] = SPECS, mixed: bool = False
) -> tuple[str, ...] | None:
    """The distributions that `--plugins`, its variable or its key allow; None: all. It is read before plugins are
    loaded, which add options: whoever reads the whole later tells every other problem.

    Args:
        specs: all flags of the command.
        mixed: as for `scan`.

    Raises:
        ConfigurationError: it has a value that is no list of names.
    """
    found = gathered(scan(argv, specs, mixed=mixed), environ, cwd, SPECS).found
    values, unreadable = parse_found(found, {"plugins": SPECS["plugins"]})
    if unreadable:
        raise ConfigurationError(*unreadable.values())
    allowed: tuple[str, ...] | None = values["plugins"]
    return allowed


def gathered(line: CommandLine, environ: Mapping[str, str], cwd: Path, specs: Mapping[str, Spec]) -> Findings:
    """The strongest value of each setting in all sources, and the problems of the sources."""
    environment = from_environment(environ, specs)
    named = line.found.get("config") or environment.found.get("config")
    file = from_file(named, cwd, environ.get("HOME", ""), specs)
    found = {**fallbacks(environ, specs), **file.found, **environment.found, **line.found}
    problems = [*line.problems, *environment.problems, *file.problems]
    return Findings(found, problems, file.config_file, file.by_backend, [*environment.left_out, *file.left_out])


def asks_for_help(argv: Sequence[str], added_options: Sequence[Option] = (), own: Sequence[Spec] = ()) -> bool:
    """Whether `-h` or `--help` stands among our flags (after the script it belongs to the script)."""
    specs = {**SPECS, **specs_of_options(added_options), **{spec.name: spec for spec in own}}
    return scan(argv, specs).help


def _places(found: Mapping[str, Found]) -> dict[str, str]:
    """By flag: where the value of a setting comes from."""
    return {SPECS[name].flag: value.origin for name, value in found.items() if name in SPECS}


def settings_from(values: Mapping[str, object], backend_named: BackendNamed = lambda _: None) -> Settings:
    """Settings from Python values, under the rules of every other source: typed, checked and resolved.

    A value may be typed or text, such as `nnodes="1:4"`; or a `Found`, which has its origin. Other settings have their
    defaults.

    Raises:
        ConfigurationError: with every problem; the origin of a plain value is its name.
    """
    found = {name: raw if isinstance(raw, Found) else Found(raw, name) for name, raw in values.items()}
    problems = [Problem(name, "expected the name of a setting, found an unknown one") for name in found.keys() - SPECS]
    parsed, unreadable = parse_found(found, SPECS)
    origins = {name: name if name in found else DEFAULT for name in SPECS}
    settings, _ = resolve(Settings(**parsed), origins, random_run_id, {}, backend_named)
    broken = broken_rules(settings, unreadable, _places(found), backend_named(settings.rdzv_backend))
    problems += [*unreadable.values(), *broken]
    if problems:
        raise ConfigurationError(*problems)
    return settings


def parse_found(found: Mapping[str, Found], specs: Mapping[str, Spec]) -> tuple[dict[str, Any], dict[str, Problem]]:
    """The typed value of every setting (the default where none was found, or an unreadable one), and the problems."""
    values: dict[str, Any] = {name: spec.default for name, spec in specs.items()}
    unreadable = {}
    for name, spec in specs.items():
        if name not in found or (found[name].raw is None and spec.default is None):
            continue  # only Python code can give None, which leaves the setting unset
        try:
            values[name] = spec.parse(found[name].raw)
        except ValueError as error:
            unreadable[name] = Problem(found[name].origin, str(error))
    return values, unreadable
