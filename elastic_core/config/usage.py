"""The text of `elastic run --help`, made from the table of settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.config.explain import as_word
from elastic_core.config.settings import SPECS
from elastic_core.config.spec import GROUPS, Spec, specs_of_options
from elastic_core.errors import EXIT_CODE_MEANING, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from elastic_core.hooks.records import Option

_HEAD = """\
usage: elastic run [flags] script [arguments of the script]

Starts the workers of a training job on this node. Flags may be written with dashes or underscores;
a switch is turned off by --name=false. What follows the script belongs to the script. A flag wins
over its variables (in the order shown), these over the config file, that over what Slurm or a
Kubernetes Indexed Job says, and that over the default.
"""

_EXAMPLE = "elastic run --nnodes 2:4 --nproc-per-node 8 --rdzv-endpoint node0:29400 --rdzv-id job7 train.py"


def help_text(added_options: Iterable[Option] = (), width: int = 100) -> str:
    """The help of `elastic run`: every flag by group, with default, unit and environment variables."""
    specs = [*SPECS.values(), *specs_of_options(added_options).values()]
    sections = [_HEAD]
    for group in GROUPS:
        entries = [_entry(spec, width) for spec in specs if spec.group == group]
        sections.append(f"{group}:\n" + "\n".join(entries) + "\n")
    return "\n".join([*sections, f"example:\n  {_EXAMPLE}\n", "exit codes:", *_exit_codes()])


def command_help(
    head: str, specs: Iterable[Spec], example: str, codes: Mapping[ExitCode, str], width: int = 100
) -> str:
    """The help of a command with a few flags. `codes`: the exit codes that have a meaning of their own for it."""
    told = [f"  {int(code)}  {meaning}" for code, meaning in codes.items()]
    rest = "  others as for elastic run; docs/reference/exit-codes.md has them all"
    sections = (
        head.rstrip("\n"),
        "\n".join(["flags:", *(_entry(spec, width) for spec in specs)]),
        f"example:\n  {example}",
        "\n".join(["exit codes:", *told, rest]),
    )
    return "\n\n".join(sections)


def _exit_codes() -> list[str]:
    """Those of `run`; what a code means for other commands comes after a semicolon."""
    found = {code: meaning.partition("; ")[0] for code, meaning in EXIT_CODE_MEANING.items()}
    told = [f"  {code:<3} {meaning}" for code, meaning in found.items() if code is not ExitCode.NOT_FOUND]
    return [*told, "  128 + n: signal n ended the agent; its workers are stopped"]


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
