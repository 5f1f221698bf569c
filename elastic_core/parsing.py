"""Parses the values of settings and of the options that plugins declare, and defines the types of composite values.

A parser converts a raw value (a string from a flag or a variable, a TOML value, or a typed value from Python) to the
declared type. If the value is invalid, the parser raises ValueError with the expected and the actual value. A parser
accepts its own results, and returns them unchanged. The types of composite values are immutable, and their parsers also
accept `str(value)`.

Plugins import this module when they are loaded, so it must not import `elastic_core.rendezvous`."""

from __future__ import annotations

import enum
import math
import re
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.errors import Problem, described_error
from elastic_core.text import HIDDEN, did_you_mean, truth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.hooks.records import Option


T = TypeVar("T")
N = TypeVar("N", int, float)
Parser = Callable[[object], T]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
LONGEST_NAME = 255
"""The maximum number of characters in a name that nodes exchange."""
_MOST_WORKERS = 2**16  # on one node
_LONGEST_S = 9 * 10**9  # some 285 years, which still fit a 64-bit number of nanoseconds


def unexpected(expected: str, found: object) -> ValueError:
    """Return a ValueError in the wording that all parsers share."""
    return ValueError(f"expected {expected}, found {found!r}")


def parse_text(raw: object) -> str:
    """Parse a string. A whole number is converted to a string, because users write `rdzv_id = 7` in TOML."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, int) and not isinstance(raw, bool):
        return str(raw)
    raise unexpected("a string", raw)


def parse_filled_text(raw: object) -> str:
    """Parse a non-empty string."""
    text = parse_text(raw).strip()
    if not text:
        raise unexpected("a non-empty string", raw)
    try:
        text.encode()  # names are sent to other nodes
    except UnicodeEncodeError:
        raise unexpected("text in UTF-8", raw) from None
    return text


def printable(parse: Parser[str]) -> Parser[str]:
    """Return a parser that also requires text that other nodes can read."""

    def parse_printable(raw: object) -> str:
        text = parse(raw)
        if len(text) > LONGEST_NAME or not text.isprintable():
            raise unexpected(f"at most {LONGEST_NAME} printable characters", raw)
        return text

    return parse_printable


def parse_name_or_none(raw: object) -> str | None:
    """Parse a name. Returns None for `none`, an empty string and None, which disable the feature."""
    text = "" if raw is None else parse_text(raw).strip()
    return None if text.lower() in ("", "none") else text


def parse_path(raw: object) -> Path:
    """Parse a path. `~` stands for the home directory."""
    if isinstance(raw, Path):
        return raw
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise unexpected("a path", raw)
    try:
        return Path(raw).expanduser()
    except RuntimeError:
        raise unexpected("a path in the home directory of an existing user", raw) from None


def parse_boolean(raw: object) -> bool:
    """Parse a Boolean in any of the usual spellings."""
    value = truth(raw)
    if value is None:
        raise unexpected("true or false (also 1/0, yes/no, on/off)", raw)
    return value


def _whole_number(raw: object) -> int | None:
    if isinstance(raw, bool) or not isinstance(raw, str | int):
        return None
    try:
        return int(raw)
    except ValueError:
        return None


def _number(raw: object) -> float | None:
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        return None
    try:
        return found if math.isfinite(found := float(raw)) else None
    except (ValueError, OverflowError):
        return None


def _seconds(raw: object) -> float | None:
    number = _number(raw)
    if number is not None and number > _LONGEST_S:
        raise unexpected(f"at most {_LONGEST_S:,} seconds", raw)
    return number


def integer(least: float | None = None, most: float | None = None) -> Parser[int]:
    """Return a parser for whole numbers within inclusive bounds."""
    return _within(_whole_number, "a whole number", least, None, most)


def _within(
    read: Callable[[object], N | None], what: str, least: float | None, above: float | None, most: float | None
) -> Parser[N]:
    bounds = ((">", above), (">=", least), ("<=", most))
    expected = " and ".join(f"{sign} {bound:.12g}" for sign, bound in bounds if bound is not None)
    if least is not None and most is not None:
        expected = f"from {least:.12g} to {most:.12g}"

    def parse(raw: object) -> N:
        found = read(raw)
        if (
            found is None
            or (least is not None and found < least)
            or (above is not None and found <= above)
            or (most is not None and found > most)
        ):
            raise unexpected(f"{what} {expected}".rstrip(), raw)
        return found

    return parse


def seconds(*, above: float | None = None) -> Parser[float]:
    """Return a parser for finite durations in seconds: at least 0 or, if `above` is given, more than `above`."""
    return _within(_seconds, "a number of seconds", 0 if above is None else None, above, None)


def seconds_or_none(raw: object) -> float:
    """Parse a duration of at least 0.1 seconds. Returns 0.0 for 0 and `none`, which disable the feature."""
    number = 0.0 if isinstance(raw, str) and raw.strip().lower() == "none" else _seconds(raw)
    if number is None or not (number == 0 or number >= 0.1):
        raise unexpected("a number of seconds >= 0.1, or 0 or none to disable", raw)
    return number


def choice(*names: str) -> Parser[str]:
    """Return a parser that accepts only these words."""

    def parse(raw: object) -> str:
        if raw not in names:
            raise unexpected(f"one of {', '.join(names)}", raw)
        return str(raw)

    return parse


_LEVELS = ("debug", "info", "warning", "error", "critical")
_OTHER_LEVELS = {"warn": "warning", "fatal": "critical", **{f"{n}0": level for n, level in enumerate(_LEVELS, 1)}}


def parse_log_level(raw: object) -> str:
    """Parse a level of Python's `logging`, by name or number, and return its lower-case name."""
    text = str(raw).strip().lower()
    level = _OTHER_LEVELS.get(text, text)
    if level not in _LEVELS:
        raise unexpected(f"one of {', '.join(_LEVELS)}", raw)
    return level


def parse_process_count(raw: object) -> int | str:
    """Parse a number of workers, or the name of a device type that the agent counts later."""
    number = _whole_number(raw)
    if number is not None and 1 <= number <= _MOST_WORKERS:
        return number
    if number is None and isinstance(raw, str) and _NAME.fullmatch(raw):
        return raw
    raise unexpected(
        f"a number of workers from 1 to {_MOST_WORKERS:,}, or auto, cpu, gpu, xpu or another accelerator's name", raw
    )


def parser_of(option: Option) -> Parser[Any]:
    """Return the parser for a plugin's option. Its errors do not reveal a secret value."""
    if option.type is bool:  # never secret
        return parse_boolean
    bounds = (option.least, option.above, option.most)
    if option.type is str:
        read: Parser[Any] = parse_text
    elif option.type is int:
        read = _within(_whole_number, "a whole number", *bounds)
    elif option.unit == "seconds":
        read = _within(_seconds, "a number of seconds", *bounds)
    else:
        read = _within(_number, "a number", *bounds)

    def parse(raw: object) -> Any:
        try:
            value = read(raw)
            if option.check is not None:
                _check(option.check, value)
        except ValueError as error:
            if not option.secret:
                raise
            text = str(error).partition(", found")[0].replace(str(raw) or HIDDEN, HIDDEN)
            raise ValueError(f"{text}, found {HIDDEN}") from None
        return value

    return parse


def _check(check: Callable[[Any], object], value: object) -> None:
    try:
        check(value)
    except ValueError:
        raise
    except Exception as error:  # a bug in a plugin must not look like one in the core
        raise ValueError(f"the plugin's check failed: {described_error(error)}, found {value!r}") from error


_NODES = "N or MIN:MAX nodes with 1 <= MIN <= MAX (such as 2 or 1:4)"
_STREAMS = "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or a map by local rank such as 0:3,11:1"
_DISTRIBUTION = re.compile(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", re.ASCII)
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
    if not names or not all(_DISTRIBUTION.fullmatch(name) for name in names):
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


_TORCHRUNS = {
    *("join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "keep_alive_interval"),
    *("keep_alive_max_attempt", "store_type", "is_host", "read_timeout", "timeout", "rank", "etcd_prefix"),
}
"""Options of torchrun's backends that can be ignored. TLS options are not among them, because ignoring them would
disable encryption."""


def type_options(
    options: Sequence[Option] | None, raw: Mapping[str, object], origin: str
) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """Convert raw values into typed values for a factory, and collect the problems.

    Args:
        options: the options that the plugin declares; None accepts any option and keeps its value unchanged.
        raw: values as strings (from a flag or a variable) or already typed (from a table); None means unset. Names may
            contain `-` instead of `_`.
        origin: the source of `raw`, for messages.

    Returns:
        The value or the default of every declared option that is valid, and all problems.
    """
    if options is None:
        return dict(raw), ()
    problems: list[Problem] = []
    given = _by_declared_name(options, raw, origin, problems)
    typed: dict[str, Any] = {}
    for option in options:
        value = given.get(option.name)
        try:
            typed[option.name] = option.default if value is None else parser_of(option)(value)
        except ValueError as error:
            problems.append(Problem(f"{origin}: {option.name}", str(error)))
    return typed, tuple(problems)


def not_needed(options: Sequence[Option] | None, raw: Iterable[str]) -> list[str]:
    """Return the names in `raw` that are options of torchrun's backends but not of this backend. Command lines for
    torchrun may contain such options, because torchrun ignores options that a backend does not know."""
    if options is None:
        return []
    unused = _TORCHRUNS - {option.name for option in options}
    return [name for name in raw if _key(name) in unused]


def find_option(raw: Mapping[str, T], name: str) -> T | None:
    """Return the option's value, or None if the option is not given. `-` and `_` are equivalent in names."""
    return next((value for written, value in raw.items() if _key(written) == name), None)


def _by_declared_name(
    options: Sequence[Option], raw: Mapping[str, object], origin: str, problems: list[Problem]
) -> dict[str, object]:
    declared = {_key(option.name): option.name for option in options}
    given: dict[str, object] = {}
    for written, value in raw.items():
        name = declared.get(_key(written))
        if name is None:
            known = sorted(declared.values())
            hint = did_you_mean(written, known) or f"; known options: {', '.join(known) or 'none'}"
            problems.append(Problem(f"{origin}: {written}", f"unknown option{hint}"))
        elif name in given:
            problems.append(Problem(f"{origin}: {written}", f"the option {name!r} is given twice, in two spellings"))
        else:
            given[name] = value
    return given


def _key(name: str) -> str:
    return name.strip().replace("-", "_").lower()
