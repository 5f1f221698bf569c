"""Generates the reference page of all commands except `run` from their help texts."""

from __future__ import annotations

import contextlib
import io
import re
from typing import TYPE_CHECKING

from elastic_core.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SCHEMAS = {"explain": "json.md", "plugins": "json.md", "status": "status.md", "doctor": "doctor.md"}
COMMANDS = ("explain", "plugins", "status", "drain", "stop", "serve", "doctor")


def page(note: str) -> str:
    """Return the page. `note` is a comment that marks it as generated."""
    parts = [
        "# Commands\n",
        note,
        "For the flags of `elastic run`, see [Settings](settings.md). Flags that the commands on this page share with",
        "`elastic run` have the same variables and config file keys; all other flags have neither. The default backend",
        "of status, drain, stop and serve is c10d. Exit codes that a table does not list have [the same meaning as for",
        "`elastic run`](exit-codes.md).\n",
    ]
    return "\n".join([*parts, *(line for name in COMMANDS for line in _section(name))])


def help_of(name: str) -> str:
    """Return the output of `elastic NAME --help`."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main([name, "--help"])
    return printed.getvalue()


def _section(name: str) -> Iterator[str]:
    usage, about, flags, example, codes = help_of(name).strip().split("\n\n")
    yield f"## `elastic {name}`\n"
    yield f"```text\n{usage.removeprefix('usage: ')}\n```\n"
    yield f"{about}\n"
    rows = _table(("flag", "default", "meaning", "variables"), map(_flag, re.findall(_FLAG, flags, re.M)))
    yield from (row.replace("print JSON.", f"print [JSON]({_SCHEMAS.get(name)}).") for row in rows)
    yield f"```sh\n{example.removeprefix('example:').strip()}\n```\n"
    yield from _table(("exit code", "meaning"), re.findall(r"^  (\d+)  (.+)$", codes, re.M))


_FLAG = r"^  (--.+)\n((?: {6}.+\n?)+)"


def _flag(found: tuple[str, str]) -> tuple[str, ...]:
    flag, text = found
    meaning, default, variables = _ABOUT.fullmatch(" ".join(text.split())).groups("")  # type: ignore[union-attr]
    named = ", ".join(f"`{name}`" for name in variables.split(", ") if name)
    return f"`{flag}`", f"`{default}`", f"{meaning}.", named


_ABOUT = re.compile(r"(.*) \(default: (.*?)(?:; (.*))?\)")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells).rstrip() + " |" for cells in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines, ""]
