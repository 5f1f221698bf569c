"""Parsers of values with parts: comma lists, maps, ranges. The rules of `parsing` hold here too."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping

from elastic_core.config.secrets import is_secret
from elastic_core.config.values import NodeRange, StreamMap, Streams
from elastic_core.parsing import Parser, parse_text, unexpected
from elastic_core.text import HIDDEN

_NODES = "N or MIN:MAX nodes with 1 <= MIN <= MAX (such as 2 or 1:4)"
_STREAMS = "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or a map by local rank such as 0:3,11:1"
_OPTIONS = "options as key=value, separated by commas (`,,` is a comma within a value)"
_NOT_CATCHABLE = frozenset({signal.SIGKILL, signal.SIGSTOP})


def split_commas(text: str) -> list[str]:
    """The parts of a comma list, without the empty ones; `,,` is a comma within a part, read from the left."""
    parts = [""]
    for piece in re.findall(r",,|,|[^,]+", text):
        if piece == ",":
            parts.append("")
        else:
            parts[-1] += "," if piece == ",," else piece
    return [part for part in parts if part]


def join_commas(parts: Iterable[str]) -> str:
    """The text that `split_commas` takes apart. A part that begins with a comma cannot be written this way."""
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
    """A comma list of texts, or a list of them (taken as they are)."""
    return tuple(parse_text(part) for part in _parts(raw, "texts separated by commas"))


def parse_ranks(raw: object) -> frozenset[int]:
    """Local ranks: a comma list, or a list of whole numbers."""
    expected = "local ranks separated by commas (such as 0,1,11)"
    ranks: set[int] = set()
    for part in _parts(raw, expected):
        text = str(part).strip()
        if not re.fullmatch("[0-9]+", text):
            raise unexpected(expected, raw)
        ranks.add(int(text))
    return frozenset(ranks)


def some_of(*names: str) -> Parser[tuple[str, ...]]:
    """A parser of a comma list of some of these words, at least one; each once, in the order in which they are named
    here."""
    expected = f"some of {', '.join(names)}, separated by commas"

    def parse(raw: object) -> tuple[str, ...]:
        found = {str(part).strip() for part in _parts(raw, expected)}
        if not found or not found <= set(names):
            raise unexpected(expected, raw)
        return tuple(name for name in names if name in found)

    return parse


def parse_node_range(raw: object) -> NodeRange:
    """`N` or `MIN:MAX`."""
    if isinstance(raw, NodeRange):
        return raw
    match = None if isinstance(raw, bool) else re.fullmatch(r"\s*(\d+)\s*(?::\s*(\d+)\s*)?", str(raw))
    if match is None:
        raise unexpected(_NODES, raw)
    least, most = match[1], match[2] or match[1]
    try:
        return NodeRange(int(least), int(most))
    except ValueError:
        raise unexpected(_NODES, raw) from None


def _streams(raw: object, whole: object) -> Streams:
    text = str(raw).strip()
    if isinstance(raw, bool) or text not in ("0", "1", "2", "3"):
        raise unexpected(_STREAMS, whole)
    return Streams(int(text))


def _named_streams(pairs: Iterable[tuple[object, object]], whole: object) -> StreamMap:
    named: dict[int, Streams] = {}
    for rank, streams in pairs:
        text = str(rank).strip()
        if not re.fullmatch("[0-9]+", text):
            raise unexpected(_STREAMS, whole)
        if int(text) in named:
            raise unexpected(f"each local rank once, but rank {int(text)} is there twice", whole)
        named[int(text)] = _streams(streams, whole)
    return StreamMap(named=tuple(sorted(named.items())))


def parse_stream_map(raw: object) -> StreamMap:
    """`3`, or a map by local rank: `0:3,11:1`, in TOML also a table."""
    if isinstance(raw, StreamMap):
        return raw
    if isinstance(raw, Mapping):
        return _named_streams(raw.items(), raw)
    text = str(raw)
    if ":" not in text:
        return StreamMap(_streams(int(raw) if isinstance(raw, Streams) else raw, raw))
    pairs = [part.partition(":") for part in text.split(",")]
    return _named_streams([(rank, streams) for rank, _, streams in pairs], raw)


def _option_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise unexpected("text, a number, true or false as the value of an option", value)


def parse_options(raw: object) -> dict[str, str]:
    """Options as `key=value`: a comma list, a list of such lists (they add up, the last of a key wins), a table."""
    if isinstance(raw, Mapping):
        return {str(key): _option_text(value) for key, value in raw.items()}
    lists = raw if isinstance(raw, list | tuple) else [raw]
    options: dict[str, str] = {}
    for text in lists:
        if not isinstance(text, str):
            raise unexpected(_OPTIONS, raw)
        for part in split_commas(text):
            # A part that is none may be the rest of a secret with a comma in it.
            name, value = _option(part, hidden=any(map(is_secret, options)))
            options[name] = value
    return options


def _option(part: str, hidden: bool) -> tuple[str, str]:
    key, _, value = part.partition("=")
    if not key.strip() or not value.strip():
        raise ValueError(f"expected {_OPTIONS}, found {HIDDEN if hidden else repr(part)}")
    return key.strip(), value.strip()


def format_options(options: Mapping[str, str]) -> str:
    """The text that `parse_options` takes apart."""
    return join_commas(f"{key}={value}" for key, value in options.items())


def parse_signals(raw: object) -> tuple[signal.Signals, ...]:
    """Signal names, with or without `SIG`, in any case; each once, in order."""
    found = [_signal(part) for part in _parts(raw, "signal names separated by commas (such as SIGTERM,SIGUSR1)")]
    return tuple(dict.fromkeys(found))


def _signal(part: object) -> signal.Signals:
    if isinstance(part, signal.Signals):
        return part
    name = str(part).strip().upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    known = signal.Signals.__members__.get(name)
    if known is None or known in _NOT_CATCHABLE:
        raise unexpected("the name of a signal that a process can handle (such as SIGTERM)", part)
    return known
