"""The sources of settings: the command line, the environment and the config file.

The command line consists of flags, then the script, then the script's arguments. This parser is used instead of
argparse for three reasons: it reports every bad flag, not only the first; it passes everything after the script to the
script, even if it looks like a flag; and it starts faster. Dashes and underscores in a flag are equivalent.
`--name value`, `--name=value`, `-r3`, `-r 3` and `-r=3` are accepted.

The environment contains `ELASTIC_<NAME>`, then `PET_<NAME>`, then torchrun's special variables. An empty variable is
treated as unset. Other programs also use variables that begin with `ELASTIC_` (`ELASTIC_PASSWORD`, `ELASTIC_NODES`),
and Kubernetes sets some for services (`ELASTIC_MASTER_PORT=tcp://...`). An unknown variable is therefore never an
error, but if its name resembles that of a setting, the user gets a warning.

The config file is `elastic.toml`, or the table `[tool.elastic]` of pyproject.toml. Keys are the settings' names, with
dashes or underscores, and a few short names (`backend`, `endpoint`, `run_id`). The table `[rendezvous]` has the keys
`backend`, `endpoint` and `id`, and may contain a table of options for each backend (`[rendezvous.etcd]`). A config file
decides which program runs and which files are written. For security, the search skips any file that is world-writable
or belongs to another user, and warns about it. A file given with `--config` is always used."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections import deque
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elastic_core.compat import FLAG_HOMES
from elastic_core.config.spec import Findings, RawValue
from elastic_core.errors import Problem
from elastic_core.parsing import parse_path
from elastic_core.support.files import foreign
from elastic_core.text import did_you_mean, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from elastic_core.config.spec import Spec

RUN = "elastic run"

_LOOKS_LIKE_FLAG = re.compile(r"-[^\d.]")


@dataclass
class CommandLine(Findings):
    """A command line's flags and its other words: the script and its arguments, or operands. `certain` is false if an
    unknown flag made the parser guess where the flags end."""

    words: list[str] = field(default_factory=list)
    help: bool = False
    certain: bool = True


def from_command_line(argv: Iterable[str], specs: Mapping[str, Spec], command: str) -> CommandLine:
    """Return the settings and the other words of a command line. Values remain strings.

    In `elastic run`, the flags end at the first word that is not a flag. In other commands, they end only at `--`.
    """
    line, words = CommandLine(), deque(argv)
    while words and not (line.words and command == RUN):
        word = words.popleft()
        if word == "--":
            break
        if word in ("-h", "--help"):
            line.help = True
        elif not word.startswith("-") or word == "-":
            line.words.append(word)
        else:
            _take(word, words, specs, command, line)
    line.words += words
    return line


def _take(word: str, after: deque[str], specs: Mapping[str, Spec], command: str, line: CommandLine) -> None:
    """Process the flag `word` and its value, which may be the first word in `after`."""
    spec, value = _match(word, specs)
    if spec is None:
        line.certain = False
        name = word.partition("=")[0]
        asked = name.lstrip("-").replace("-", "_")
        home = FLAG_HOMES.get(asked) if command == RUN else None
        meant = specs.get(nearest(asked, specs) or "") if home is None else None
        if home is not None:
            advice = to_load(home)
        else:
            advice = f"did you mean {meant.flag}?" if meant else f"see {command} --help"
            if not meant and command == RUN:
                advice += "; flags of the script go after the script"
        line.problems.append(Problem(name, f"unknown flag; {advice}"))
        if meant and not meant.is_switch and "=" not in word:
            _value(after)  # skip the word that is probably the misspelled flag's value, so that later flags are read
        return
    if value is None:
        value = "true" if spec.is_switch else _value(after)
    if value is None:
        message = f"requires a value; write {spec.flag}={spec.metavar}"
        line.problems.append(Problem(spec.flag, message))
        return
    earlier = line.found.get(spec.name)
    before = earlier.raw if earlier and isinstance(earlier.raw, list) else []
    line.found[spec.name] = RawValue([*before, value] if spec.adds_up else value, spec.flag)


def to_load(home: str) -> str:
    """Return the advice for a missing plugin of the distribution `home`."""
    return f"pip install {home}; if it is installed, elastic plugins shows why its options are missing"


def _match(word: str, specs: Mapping[str, Spec]) -> tuple[Spec | None, str | None]:
    """Return the flag's setting, or None if it is unknown, and the value attached to the flag, if any."""
    name, equals, value = word.partition("=")
    attached = value if equals else None
    if name.startswith("--"):
        return specs.get(name[2:].replace("-", "_")), attached
    spec = next((spec for spec in specs.values() if spec.short == word[:2]), None)
    if len(name) == 2:
        return spec, attached
    return (None, None) if spec is None or spec.is_switch else (spec, word[2:])


def _value(words: deque[str]) -> str | None:
    return words.popleft() if words and not _LOOKS_LIKE_FLAG.match(words[0]) else None


PREFIX = "ELASTIC_"
NOT_SETTINGS = frozenset({"ELASTIC_DISABLE_PLUGINS", "ELASTIC_BEAT_FILE", "ELASTIC_STOP_FILE", "ELASTIC_TIMER_CLIENT"})
"""Variables that have our prefix but are not settings. Other modules read them."""

_OF_SERVICE = re.compile(r"(tcp|udp|sctp)://")
_TYPING_ERROR = 0.8
"""The similarity above which an unknown name is considered misspelled. The similarity of `PORT` and `HEALTH_PORT` is
0.53."""


def from_environment(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> Findings:
    """Return the settings from the environment, except those from other programs' variables (see `fallbacks`)."""
    findings = Findings(from_torchrun(environ, specs))
    for spec in specs.values():
        names = [name for name in spec.own_variables() if environ.get(name)]
        for name in (*names, *spec.also_reads):
            if _is_of_service(name, environ):
                message = "not a port: Kubernetes has set this variable to the address of a service"
                findings.left_out.append(Problem(name, message))
        if own := [name for name in names if not _is_of_service(name, environ)]:
            findings.found[spec.name] = RawValue(environ[own[0]], own[0])
    valid = {PREFIX + name.upper() for name in specs}
    for name in sorted({name for name in environ if name.startswith(PREFIX)} - valid - NOT_SETTINGS):
        known = (variable.removeprefix(PREFIX) for variable in sorted(valid | NOT_SETTINGS))
        near = nearest(name.removeprefix(PREFIX), known, _TYPING_ERROR)
        if home := FLAG_HOMES.get(name.removeprefix(PREFIX).lower()):
            findings.left_out.append(Problem(name, f"a plugin that is not loaded reads it; {to_load(home)}"))
        elif near is not None:
            findings.left_out.append(Problem(name, f"unknown variable; did you mean {PREFIX}{near}?"))
    return findings


def _is_of_service(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether Kubernetes has set the variable to a service's address, as it does in every pod."""
    return name.endswith("_PORT") and bool(_OF_SERVICE.match(environ.get(name, "")))


def from_torchrun(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> dict[str, RawValue]:
    """Return the settings from torchrun's special variables, whose names are not derived from flags."""
    found = {}
    for spec in specs.values():
        for name, meaning in spec.also_reads.items():
            if environ.get(name) and not _is_of_service(name, environ) and (raw := meaning(environ[name])):
                found[spec.name] = RawValue(raw, name)
    return found


def fallbacks(environ: Mapping[str, str], specs: Mapping[str, Spec]) -> dict[str, RawValue]:
    """Return the settings from other programs' variables, such as LOGLEVEL. A config file overrides them."""
    pairs = [(spec.name, name) for spec in specs.values() for name in spec.fallbacks if environ.get(name)]
    return {setting: RawValue(environ[name], name) for setting, name in pairs}


_OWN = "elastic.toml"
_SHARED = "pyproject.toml"
RENDEZVOUS = "rendezvous"
_OF_NO_BACKEND = ("conf", "options", "rdzv-conf", "rdzv_conf")  # common guesses, which are not backends
_HEAD = 1 << 16  # how many bytes of another user's file to search for our table
_OF_RENDEZVOUS = {"backend": "rdzv_backend", "endpoint": "rdzv_endpoint", "id": "rdzv_id"}


class _Unreadable(Exception):
    """The config file cannot be used. The message states the reason."""


@dataclass(frozen=True)
class ConfigFile:
    """The parsed config file.

    Args:
        path: the file's path, or None if there is no config file.
        table: the file's settings for elastic.
        problem: why the file cannot be used, or None if it can be used.
        left_out: files that the search skipped.
    """

    path: Path | None = None
    table: Mapping[str, Any] = field(default_factory=dict)
    problem: Problem | None = None
    left_out: Sequence[Problem] = ()

    def findings(self, specs: Mapping[str, Spec]) -> Findings:
        """Return the file's values for these settings, and the problems found in the file."""
        findings = Findings(config_file=self.path, left_out=list(self.left_out))
        if self.problem is not None:
            findings.problems.append(self.problem)
        elif self.path is not None:
            _read_file(findings, self.path, self.table, specs)
        return findings


def config_file(named: RawValue | None, cwd: Path, home: str) -> ConfigFile:
    """Read the config file `named` (relative to `cwd`). If `named` is None, search `cwd` and its parents for a config
    file. The search stops at the home directory, `home`, and at a file system boundary."""
    left_out: list[Problem] = []
    try:
        path = _locate(cwd, home, left_out) if named is None else cwd / parse_path(named.raw)
    except ValueError:  # reported when the setting is parsed
        path = None
    if path is None:
        return ConfigFile(left_out=left_out)
    try:
        table = _table(path)
        if table is None and named is not None:
            raise _Unreadable("no table [tool.elastic]; add it, or name another file")
        return ConfigFile(path, table or {}, left_out=left_out)
    except _Unreadable as error:
        problem = Problem(str(path), str(error)) if named is None else Problem(named.origin, f"{path}: {error}")
        return ConfigFile(path, problem=problem, left_out=left_out)


def _locate(cwd: Path, home: str, left_out: list[Problem]) -> Path | None:
    for folder in _upwards(cwd, home):
        for path in (folder / _OWN, folder / _SHARED):
            # Not pathlib: `Path.is_file` raises if a parent folder is not accessible.
            if not os.path.isfile(path):  # noqa: PTH113
                continue
            if why := _distrusted(path):
                if path.name == _OWN or _mentions_us(path):
                    left_out.append(Problem(str(path), f"ignored because {why}; to use it, pass it with --config"))
            elif path.name == _OWN or _has_our_table(path):
                return path
    return None


def _upwards(cwd: Path, home: str) -> Iterator[Path]:
    """Yield `cwd` and its parents, up to the home directory or the root of the file system, whichever comes first."""
    for folder in (cwd, *cwd.parents):
        yield folder
        with contextlib.suppress(OSError):  # there may be no home directory, or no permission to search a parent
            device = folder.stat().st_dev
            if device != folder.parent.stat().st_dev or (home and folder.samefile(home)):
                return


def _distrusted(path: Path) -> str:
    try:
        return foreign(path)
    except OSError:
        return ""  # reading the file reports why it is unreadable


def _mentions_us(path: Path) -> bool:
    """Return whether an untrusted pyproject.toml appears to contain `[tool.elastic]`, without parsing the file."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and b"tool.elastic" in file.read(_HEAD)
    except OSError:
        return False


def _has_our_table(path: Path) -> bool:
    """Return whether a pyproject.toml contains `[tool.elastic]` or, if malformed, appears to contain it."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        # Most files do not contain this word, so they need not be parsed, and no TOML parser need be imported.
        return "elastic" in text and _table(path) is not None
    except _Unreadable:
        return "tool.elastic" in text
    except OSError:
        return False


def _table(path: Path) -> Mapping[str, Any] | None:
    """Return the settings in the file, or None for a pyproject.toml without `[tool.elastic]`."""
    document = _parse(path)
    if path.name != _SHARED:
        return document
    tool = document.get("tool", {})
    table = tool.get("elastic") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise _Unreadable(f"expected [tool.elastic] to be a table, found {table!r}")
    return table


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin the file with a byte order mark
    except OSError as error:
        raise _Unreadable(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise _Unreadable(f"not valid UTF-8 (at byte {error.start}); save it as UTF-8") from None
    # Imported here because most runs have no config file.
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        parsed: dict[str, Any] = toml.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Unreadable(f"not valid TOML: {error}") from None
    return parsed


def _read_file(findings: Findings, path: Path, table: Mapping[str, object], specs: Mapping[str, Spec]) -> None:
    keys = {key: spec.name for spec in specs.values() if spec.name != "config" for key in (spec.name, *spec.aliases)}
    prefix = f"{path.name}: " + ("tool.elastic." if path.name == _SHARED else "")
    for written, raw in table.items():
        key = written.replace("-", "_")
        origin = prefix + written
        if key == RENDEZVOUS:
            _read_rendezvous(findings, origin, raw)
        elif key not in keys:
            near, home = nearest(key, (*keys, RENDEZVOUS)), FLAG_HOMES.get(key)
            advice = f"did you mean {near}?" if near else "elastic explain lists the settings"
            message = f"unknown setting; {to_load(home) if home else advice}"
            findings.problems.append(Problem(origin, message))
        else:
            _add(findings, keys[key], RawValue(raw, origin))
    flat = findings.found.get("rdzv_conf")
    if flat is not None:
        findings.problems += [Problem(it.origin, _once(flat)) for it in findings.by_backend.values()]


def _read_rendezvous(findings: Findings, origin: str, raw: object) -> None:
    if not isinstance(raw, dict):
        findings.problems.append(Problem(origin, f"expected [{RENDEZVOUS}] to be a table, found {raw!r}"))
        return
    for written, value in raw.items():
        found = RawValue(value, f"{origin}.{written}")
        name = _OF_RENDEZVOUS.get(written)
        if name is not None:
            _add(findings, name, found)
        elif isinstance(value, dict) and written not in _OF_NO_BACKEND:
            findings.by_backend[written] = found
        else:
            table = "a table with a backend's options, such as [rendezvous.c10d]"
            expected = f"expected {', '.join(_OF_RENDEZVOUS)}, or {table}"
            findings.problems.append(Problem(found.origin, f"{expected}{did_you_mean(written, _OF_RENDEZVOUS)}"))


def _add(findings: Findings, name: str, found: RawValue) -> None:
    if earlier := findings.found.get(name):
        findings.problems.append(Problem(found.origin, _once(earlier)))
    else:
        findings.found[name] = found


def _once(earlier: RawValue) -> str:
    return f"already set as {earlier.origin}; remove one of the two"
