"""The reference page of the commands beside `run`, made from the help of each."""

from __future__ import annotations

import contextlib
import io
import re
from typing import TYPE_CHECKING

from elastic_core.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SCHEMAS = {"explain": "json.md", "plugins": "json.md", "status": "status.md", "doctor": "doctor.md"}
COMMANDS = ("explain", "plugins", "status", "drain", "serve", "doctor")


def page(note: str) -> str:
    """The page; `note` says that it is generated."""
    parts = [
        "# Commands\n",
        note,
        "[`elastic run`](settings.md) has a page of its own. Its settings are read here from the same variables and",
        "the same config file; other flags are flags only. Without `--rdzv-backend`, status, drain and serve",
        "take c10d. All other [exit codes](exit-codes.md) are those of `elastic run`.\n",
    ]
    return "\n".join([*parts, *(line for name in COMMANDS for line in _section(name))])


def help_of(name: str) -> str:
    """What `elastic NAME --help` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main([name, "--help"])
    return printed.getvalue()


def _section(name: str) -> Iterator[str]:
    usage, about, flags, example, codes = help_of(name).strip().split("\n\n")
    yield f"## `elastic {name}`\n"
    yield f"```text\n{usage.removeprefix('usage: ')}\n```\n"
    yield f"{about}\n"
    rows = _table(("flag", "default", "meaning", "variables"), map(_flag, re.findall(_FLAG, flags, re.M)))
    yield from (row.replace("write JSON.", f"write [JSON]({_SCHEMAS.get(name)}).") for row in rows)
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
