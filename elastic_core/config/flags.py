"""The command line: flags, then the script, then the script's arguments.

This parser is used instead of argparse for three reasons: it reports every bad flag, not only the first; it passes
everything after the script to the script, even if it looks like a flag; and it starts faster. Dashes and underscores in
a flag are equivalent. `--name value`, `--name=value`, `-r3`, `-r 3` and `-r=3` are accepted.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_core.config.spec import Findings, RawValue
from elastic_core.errors import Problem
from elastic_core.text import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.config.spec import Spec

_LOOKS_LIKE_FLAG = re.compile(r"-[^\d.]")


@dataclass
class CommandLine(Findings):
    """A command line's flags and its other words: the script and its arguments, or operands.

    `certain` is false if the parser had to guess where the flags end, because of an unknown flag. `unread` contains the
    first unknown flag and all words after it, because a plugin may still define that flag.
    """

    words: list[str] = field(default_factory=list)
    help: bool = False
    certain: bool = True
    unread: deque[str] = field(default_factory=deque)


def read_on(line: CommandLine, specs: Mapping[str, Spec], command: str, mixed: bool, whole: bool) -> None:
    """Process the unread words: all of them if `whole`, otherwise those before the first flag that is not in `specs`.
    Values remain strings, and errors are added to `line.problems`.

    The flags end at the first word that is not a flag or, if `mixed`, only at `--`.
    """
    words = line.unread
    while words and not (line.words and not mixed):
        word = words.popleft()
        if word == "--":
            break
        if word in ("-h", "--help"):
            line.help = True
        elif not word.startswith("-") or word == "-":
            line.words.append(word)
        elif whole or _match(word, specs)[0] is not None:
            _take(word, words, specs, command, line)
        else:
            words.appendleft(word)
            return
    line.words += words
    words.clear()


def _take(word: str, after: deque[str], specs: Mapping[str, Spec], command: str, line: CommandLine) -> None:
    """Process the flag `word` and its value, which may be the first word in `after`."""
    spec, value = _match(word, specs)
    if spec is None:
        line.certain = False
        name = word.partition("=")[0]
        meant = specs.get(nearest(name.lstrip("-").replace("-", "_"), specs) or "")
        advice = f"did you mean {meant.flag}?" if meant else f"see {command} --help"
        if not meant and command == "elastic run":
            advice += "; flags of the script go after the script"
        message = f"unknown flag; {advice}"
        line.problems.append(Problem(name, message))
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
