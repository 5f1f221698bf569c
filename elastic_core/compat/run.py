"""The functions of `torch.distributed.run` that programs call, implemented on top of `elastic run`. They read settings
from the same sources as `elastic run`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

from elastic_core import cli, config
from elastic_core.config.explain import as_word
from elastic_core.observers import History
from elastic_core.parsing import join_commas

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["get_args_parser", "main", "parse_args", "run"]


def get_args_parser() -> argparse.ArgumentParser:
    """Return a parser for torchrun's flags, script and arguments. Values remain strings. If a flag is not given, its
    value is the default as a string. For such a flag, `run` still reads the setting from variables and files."""
    parser = argparse.ArgumentParser(prog="elastic run", description="see elastic run --help")
    for spec in config.SPECS.values():
        if spec.torchrun:
            names = [spec.short, spec.flag, f"--{spec.name}"]
            flags = dict.fromkeys(name for name in names if name)
            if spec.is_switch:
                parser.add_argument(*flags, dest=spec.name, action="store_true")
            else:
                word = as_word(spec.default) if spec.default or spec.default == 0 else ""
                default = None if spec.adds_up else _Default(word)
                kind = "append" if spec.adds_up else "store"
                parser.add_argument(*flags, dest=spec.name, metavar=spec.metavar, default=default, action=kind)
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line `args`, which does not include the program's name (default: this process's arguments)."""
    return get_args_parser().parse_args(args)


def run(args: argparse.Namespace) -> None:
    """Run the job that the parsed arguments describe.

    Raises:
        ChildFailedError: the workers failed for good.

    Also raises the other errors of `elastic_core.launch.elastic_launch`.
    """
    main(_words(args))


def main(args: Sequence[str] | None = None) -> None:
    """Run `elastic run` with the command line `args`, which does not include the program's name (default: this
    process's arguments). Raises the same errors as `run`."""
    manager, reading = cli.read_like_run(sys.argv[1:] if args is None else args)
    error = cli.run_job(reading, manager, History())
    if error is not None:
        raise error


def torchrun() -> NoReturn:
    """Run the console script `elastic-torchrun`."""
    cli.entry_point(["run", *sys.argv[1:]])


class _Default(str):
    """A default as a string. Its type distinguishes it from an equal value on the command line."""


def _words(args: argparse.Namespace) -> list[str]:
    """Return the command line that sets all values in `args` that are not defaults."""
    words = []
    for name, spec in config.SPECS.items():
        value = getattr(args, name, None)
        if value is None or value is False or value == "" or isinstance(value, _Default):
            continue
        for part in value if isinstance(value, list | tuple) and spec.adds_up else [value]:
            text = join_commas(map(str, part)) if isinstance(part, list | tuple) else str(part)
            words.append(spec.flag if part is True else f"{spec.flag}={text}")
    # torch.distributed.launch adds `use_env` to the parser.
    rank = [] if getattr(args, "use_env", True) else ["--local-rank=${local_rank}"]
    return [*words, args.training_script, *rank, *args.training_script_args]


if __name__ == "__main__":
    torchrun()
