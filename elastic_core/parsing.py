"""Parses single values, for settings and for the options that plugins declare.

A parser converts a raw value (a string from a flag or a variable, a TOML value, or a typed value from Python) to the
declared type. If the value is invalid, the parser raises ValueError with the expected and the actual value. A parser
accepts its own results, and returns them unchanged."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.text import HIDDEN, truth

if TYPE_CHECKING:
    from elastic_core.hooks.records import Option

T = TypeVar("T")
N = TypeVar("N", int, float)
Parser = Callable[[object], T]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


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
    return _within(_number, "a number of seconds", 0 if above is None else None, above, None)


def seconds_or_none(raw: object) -> float:
    """Parse a duration of at least 0.1 seconds. Returns 0.0 for 0 and `none`, which disable the feature."""
    number = 0.0 if isinstance(raw, str) and raw.strip().lower() == "none" else _number(raw)
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
    if number is not None and number >= 1:
        return number
    if number is None and isinstance(raw, str) and _NAME.fullmatch(raw):
        return raw
    raise unexpected("a number of workers >= 1, or auto, cpu, gpu, xpu or another accelerator's name", raw)


def parser_of(option: Option) -> Parser[Any]:
    """Return the parser for a plugin's option. Its errors do not reveal a secret value."""
    if option.type is bool:  # never secret
        return parse_boolean
    if option.type is str:
        parse: Parser[Any] = parse_text
    elif option.type is int:
        parse = _within(_whole_number, "a whole number", option.least, option.above, option.most)
    else:
        what = "a number of seconds" if option.unit == "seconds" else "a number"
        parse = _within(_number, what, option.least, option.above, option.most)
    return _silent(parse) if option.secret else parse


def _silent(parse: Parser[Any]) -> Parser[Any]:
    def parse_secret(raw: object) -> Any:
        try:
            return parse(raw)
        except ValueError as error:
            raise ValueError(f"{str(error).partition(', found')[0]}, found {HIDDEN}") from None

    return parse_secret
