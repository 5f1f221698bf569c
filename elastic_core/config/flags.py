"""The command line: flags, then the script, then what belongs to the script.

Scanned by hand rather than by argparse, for three promises: every bad flag of a line is reported, not only the
first; everything after the script is the script's, whatever it looks like; and there is nothing to import.
Dashes and underscores are one within a flag. `--name value`, `--name=value`, `-r3`, `-r 3` and `-r=3` are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_core.config.sources import Findings, Found, suggestion
from elastic_core.errors import Problem
from elastic_core.text import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.config.spec import Spec

_HELP = ("-h", "--help")
_LOOKS_LIKE_FLAG = re.compile(r"-[^\d.]")


@dataclass
class CommandLine(Findings):
    """The flags found, and the script (None when the line has none) with its own arguments.

    `certain` is false when an unknown flag makes it a guess where the script stands.
    """

    script: str | None = None
    script_args: tuple[str, ...] = ()
    help: bool = False
    certain: bool = True


@dataclass
class _Scan:
    words: Sequence[str]
    specs: Mapping[str, Spec]
    command: str = "elastic run"
    line: CommandLine = field(default_factory=CommandLine)
    at: int = 0

    def run(self) -> CommandLine:
        self.skip_flags()
        left = tuple(self.words[self.at :])
        self.line.script, self.line.script_args = (left[0] if left else None), left[1:]
        return self.line

    def run_mixed(self) -> tuple[CommandLine, tuple[str, ...]]:
        operands: list[str] = []
        while self.at < len(self.words):
            self.skip_flags()
            end = len(self.words) if self.words[self.at - 1] == "--" and self.at else self.at + 1
            operands += self.words[self.at : end]
            self.at = end
        return self.line, tuple(operands)

    def skip_flags(self) -> None:
        """Read flags up to the first word that is none."""
        while self.at < len(self.words):
            word = self.words[self.at]
            if not word.startswith("-") or word == "-":
                break
            self.at += 1
            if word == "--":
                break
            self.take(word)

    def take(self, word: str) -> None:
        """Read the flag `word`, which stands just before `at`, and its value if it takes one."""
        if word in _HELP:
            self.line.help = True
            return
        spec, value = self.match(word)
        if spec is None:
            self.unknown(word)
        elif spec.is_switch:
            self.keep(spec, True if value is None else value)
        else:
            self.keep_value(spec, value)

    def match(self, word: str) -> tuple[Spec | None, str | None]:
        name, equals, value = word.partition("=")
        attached = value if equals else None
        if name.startswith("--"):
            return self.specs.get(name[2:].replace("-", "_")), attached
        spec = next((spec for spec in self.specs.values() if spec.short == word[:2]), None)
        if len(name) == 2 or spec is None or spec.is_switch:
            return (spec if len(name) == 2 else None), attached
        return spec, word[2:]

    def keep_value(self, spec: Spec, value: str | None) -> None:
        if value is None and self.at < len(self.words) and not _LOOKS_LIKE_FLAG.match(self.words[self.at]):
            value = self.words[self.at]
            self.at += 1
        if value is None:
            message = f"expected a value ({spec.metavar}), found none; write {spec.flag}={spec.metavar}"
            self.line.problems.append(Problem(spec.flag, message))
        else:
            self.keep(spec, value)

    def keep(self, spec: Spec, value: object) -> None:
        earlier = self.line.found.get(spec.name)
        if spec.adds_up:
            before = earlier.raw if earlier is not None and isinstance(earlier.raw, list) else []
            value = [*before, value]
        self.line.found[spec.name] = Found(value, spec.flag)

    def unknown(self, word: str) -> None:
        name = word.partition("=")[0]
        near = self.specs.get(nearest(name.lstrip("-").replace("-", "_"), self.specs) or "")
        script = "; the script's flags come after the script" if self.command == "elastic run" else ""
        advice = suggestion(near.flag if near else None, f"see {self.command} --help{script}")
        self.line.problems.append(Problem(name, f"expected a flag of {self.command}, found an unknown one; {advice}"))
        self.line.certain = False
        self.skip_value_of_unknown(word, near)

    def skip_value_of_unknown(self, word: str, meant: Spec | None) -> None:
        """Step over what is probably the value of a misspelt flag, so that the flags after it are still read."""
        takes_value = meant is not None and not meant.is_switch and "=" not in word
        if takes_value and self.at < len(self.words) and not _LOOKS_LIKE_FLAG.match(self.words[self.at]):
            self.at += 1


def scan(argv: Sequence[str], specs: Mapping[str, Spec]) -> CommandLine:
    """Read a command line; nothing is parsed and nothing raised, what is wrong is in `problems`."""
    return _Scan(argv, specs).run()


def scan_mixed(argv: Sequence[str], specs: Mapping[str, Spec], command: str) -> tuple[CommandLine, tuple[str, ...]]:
    """Read a command line in which flags and operands mix freely; after `--` everything is an operand."""
    return _Scan(argv, specs, command).run_mixed()
