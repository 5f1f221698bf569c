"""Two sources of settings: the command line and the environment.

The command line consists of flags, then the script, then the script's arguments. This parser is used instead of
argparse for three reasons: it reports every bad flag, not only the first; it passes everything after the script to the
script, even if it looks like a flag; and it starts faster. Dashes and underscores in a flag are equivalent.
`--name value`, `--name=value`, `-r3`, `-r 3` and `-r=3` are accepted.

The environment contains `ELASTIC_<NAME>`, then `PET_<NAME>`, then torchrun's special variables. An empty variable is
treated as unset. Other programs also use variables that begin with `ELASTIC_` (`ELASTIC_PASSWORD`, `ELASTIC_NODES`),
and Kubernetes sets some for services (`ELASTIC_MASTER_PORT=tcp://...`). An unknown variable is therefore never an
error, but if its name resembles that of a setting, the user gets a warning."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_core.compat import FLAG_HOMES
from elastic_core.config.spec import Findings, RawValue
from elastic_core.errors import Problem
from elastic_core.text import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    return f"pip install {home}; if it is installed, elastic plugins shows why it was not loaded"


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
        near = nearest(name.removeprefix(PREFIX), (variable.removeprefix(PREFIX) for variable in valid), _TYPING_ERROR)
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
