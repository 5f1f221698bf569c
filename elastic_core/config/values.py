"""Types and parsers for composite values. The parsers follow the rules that `parsing` describes.

The types are immutable. Each type's parser also accepts `str(value)`.
"""

from __future__ import annotations

import enum
import re
import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from elastic_core.parsing import Parser, parse_text, unexpected
from elastic_core.text import HIDDEN

_NODES = "N or MIN:MAX nodes with 1 <= MIN <= MAX (such as 2 or 1:4)"
_STREAMS = "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or a map by local rank such as 0:3,11:1"
_NAME = re.compile(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", re.ASCII)
_OPTIONS = "options as key=value, separated by commas (`,,` is a comma within a value)"
_RANKS = "local ranks separated by commas (such as 0,1,11)"
_NOT_FOR_US = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD})  # each worker's exit sends SIGCHLD
_SECRETS = frozenset({"password", "secret", "token"})
"""Options that are secret even if their plugin is not installed or does not declare them secret."""


@dataclass(frozen=True)
class NodeRange:
    """The number of nodes that a job may have. Raises ValueError unless 1 <= min <= max."""

    min: int
    max: int

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise unexpected(_NODES, str(self))

    def __str__(self) -> str:
        return f"{self.min}:{self.max}"


class Std(enum.IntFlag):
    """A worker's output streams, numbered as in torchrun's `-r` and `-t`."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Parse a value of `-r` or `-t`: a number for all workers, or numbers by local rank. Raises ValueError."""
        found = parse_stream_map(vm)
        return dict(found.named) if found.named else found.everywhere


@dataclass(frozen=True)
class StreamMap:
    """The output streams selected for each local rank. If `named` is empty, all ranks have the streams in `everywhere`.
    Otherwise, each rank in `named` has the streams listed there, and all other ranks have none.

    `named` is sorted by local rank.
    """

    everywhere: Std = Std.NONE
    named: tuple[tuple[int, Std], ...] = ()

    def for_rank(self, local_rank: int) -> Std:
        """Return the streams of the worker with this local rank."""
        return dict(self.named).get(local_rank, self.everywhere)

    def __str__(self) -> str:
        if not self.named:
            return str(int(self.everywhere))
        return ",".join(f"{rank}:{int(streams)}" for rank, streams in self.named)


def is_secret(option: str, declared: Collection[str] = ()) -> bool:
    """Return whether the option's value is a secret. `declared` contains names in lower case with underscores."""
    name = option.strip().replace("-", "_").lower()
    return name in _SECRETS or name in declared


def split_commas(text: str) -> list[str]:
    """Return the non-empty parts of a comma-separated list. `,,` is a comma within a part. Pairs of commas are
    matched from the left."""
    parts = [""]
    for piece in re.findall(r",,|,|[^,]+", text):
        if piece == ",":
            parts.append("")
        else:
            parts[-1] += "," if piece == ",," else piece
    return [part for part in parts if part]


def join_commas(parts: Iterable[str]) -> str:
    """Join the parts into a list that `split_commas` can split again, unless a part begins with a comma."""
    return ",".join(part.replace(",", ",,") for part in parts)


def _parts(raw: object, expected: str) -> list[object]:
    if isinstance(raw, str):
        return list(split_commas(raw))
    if isinstance(raw, list | tuple | set | frozenset):
        return list(raw)
    if isinstance(raw, int) and not isinstance(raw, bool):
        return [raw]
    raise unexpected(expected, raw)


def parse_texts(raw: object) -> tuple[str, ...]:
    """Parse a comma-separated list of strings, or a Python list, whose strings are not split."""
    return tuple(parse_text(part) for part in _parts(raw, "strings separated by commas"))


def parse_names(raw: object) -> tuple[str, ...]:
    """Parse a comma-separated list of one or more distribution names."""
    expected = "names of distributions, separated by commas"
    names = tuple(str(part).strip() for part in _parts(raw, expected))
    if not names or not all(_NAME.fullmatch(name) for name in names):
        raise unexpected(expected, raw)
    return names


def parse_ranks(raw: object) -> frozenset[int]:
    """Parse local ranks: a comma-separated list, or a list of integers."""
    texts = [str(part).strip() for part in _parts(raw, _RANKS)]
    if not all(re.fullmatch("[0-9]+", text) for text in texts):
        raise unexpected(_RANKS, raw)
    return frozenset(map(int, texts))


def some_of(*names: str) -> Parser[tuple[str, ...]]:
    """Return a parser for a comma-separated list of one or more of `names`. Its results follow the order of `names`."""
    expected = f"some of {', '.join(names)}, separated by commas"

    def parse(raw: object) -> tuple[str, ...]:
        found = {str(part).strip() for part in _parts(raw, expected)}
        if not found or not found <= set(names):
            raise unexpected(expected, raw)
        return tuple(name for name in names if name in found)

    return parse


def parse_node_range(raw: object) -> NodeRange:
    """Parse `N` or `MIN:MAX`."""
    match = re.fullmatch(r"\s*(\d+)\s*(?::\s*(\d+)\s*)?", str(raw))
    if match is None:
        raise unexpected(_NODES, raw)
    try:
        return NodeRange(int(match[1]), int(match[2] or match[1]))
    except ValueError:
        raise unexpected(_NODES, raw) from None


def parse_stream_map(raw: object) -> StreamMap:
    """Parse a single value such as `3`, or a map from local ranks to values such as `0:3,11:1`. In TOML, the map may
    be a table."""
    if isinstance(raw, Mapping):
        pairs = [(str(rank), str(streams)) for rank, streams in raw.items()]
    elif ":" in (text := str(int(raw) if isinstance(raw, Std) else raw)):
        pairs = [(rank, streams) for rank, _, streams in (part.partition(":") for part in text.split(","))]
    else:
        return StreamMap(_streams(text, raw))
    named: dict[int, Std] = {}
    for rank, streams in pairs:
        if not re.fullmatch("[0-9]+", rank.strip()):
            raise unexpected(_STREAMS, raw)
        if int(rank) in named:
            raise unexpected(f"each local rank once, but rank {int(rank)} is listed twice", raw)
        named[int(rank)] = _streams(streams, raw)
    return StreamMap(named=tuple(sorted(named.items())))


def _streams(text: str, whole: object) -> Std:
    if text.strip() not in ("0", "1", "2", "3"):
        raise unexpected(_STREAMS, whole)
    return Std(int(text))


def parse_options(raw: object) -> dict[str, str]:
    """Parse `key=value` options: one or more comma-separated lists, or a table. A key's last value wins."""
    if isinstance(raw, Mapping):
        return {str(key): _option_text(value) for key, value in raw.items()}
    options: dict[str, str] = {}
    for text in raw if isinstance(raw, list | tuple) else [raw]:
        if not isinstance(text, str):
            raise unexpected(_OPTIONS, raw)
        for part in split_commas(text):
            key, _, value = (piece.strip() for piece in part.partition("="))
            if not key or not value:
                # The part may belong to a secret that contains a comma.
                found = HIDDEN if any(map(is_secret, options)) else repr(part)
                raise ValueError(f"expected {_OPTIONS}, found {found}")
            options[key] = value
    return options


def _option_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise unexpected("a string, a number, true or false as the value of an option", value)


def format_options(options: Mapping[str, str]) -> str:
    """Format options as a comma-separated list that `parse_options` can parse."""
    return join_commas(f"{key}={value}" for key, value in options.items())


def parse_signals(raw: object) -> tuple[signal.Signals, ...]:
    """Parse signal names, with or without `SIG`, in any case. Duplicates are dropped."""
    found = [_signal(part) for part in _parts(raw, "signal names separated by commas (such as SIGTERM,SIGUSR1)")]
    return tuple(dict.fromkeys(found))


def _signal(part: object) -> signal.Signals:
    if isinstance(part, signal.Signals):
        return part
    name = str(part).strip().upper()
    known = signal.Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}")
    if known is None or known in _NOT_FOR_US:
        raise unexpected("the name of a signal that a process can handle (such as SIGTERM)", part)
    return known
