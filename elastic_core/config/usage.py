"""The text of `elastic run --help`, made from the table of settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.config.explain import as_word
from elastic_core.config.settings import SPECS
from elastic_core.config.spec import GROUPS, Spec, specs_of_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elastic_core.hooks.records import Option

_HEAD = """\
usage: elastic run [flags] script [arguments of the script]

Starts the workers of a training job on this node. Flags may be written with dashes or underscores;
a switch is turned off by --name=false. What follows the script belongs to the script. A flag wins
over its variables (in the order shown), these over the config file, and that over the default.
"""


def help_text(added_options: Iterable[Option] = (), width: int = 100) -> str:
    """The help of `elastic run`: every flag by group, with default, unit and environment variables."""
    specs = [*SPECS.values(), *specs_of_options(added_options).values()]
    sections = [_HEAD]
    for group in GROUPS:
        entries = [_entry(spec, width) for spec in specs if spec.group == group]
        sections.append(f"{group}:\n" + "\n".join(entries) + "\n")
    return "\n".join(sections)


def command_help(head: str, specs: Iterable[Spec], width: int = 100) -> str:
    """The help of a command with a few flags."""
    return "\n".join([head, "flags:", *(_entry(spec, width) for spec in specs)])


def _entry(spec: Spec, width: int) -> str:
    import textwrap

    names = ", ".join(name for name in (spec.short, spec.flag) if name)
    head = f"  {names} {spec.metavar}".rstrip()
    unit = f" {spec.unit}" if spec.unit and spec.default is not None else ""
    variables = f"; {', '.join(spec.variables())}" if spec.variables() else ""
    about = f"{spec.help} (default: {_default(spec)}{unit}{variables})"
    body = textwrap.wrap(about, width - 6, break_on_hyphens=False, break_long_words=False)
    return "\n".join([head, *(f"      {line}" for line in body)])


def _default(spec: Spec) -> str:
    return "unset" if spec.default == "" else as_word(spec.default)
