"""From the text that users write to the typed values that a plugin's options declare. Pure; all problems at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from elastic_core.errors import Problem
from elastic_core.hooks.names import did_you_mean
from elastic_core.text import HIDDEN, truth

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.hooks.records import Option


def type_options(
    options: Sequence[Option] | None, raw: Mapping[str, object], origin: str
) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """Values for a factory, and everything that is wrong with them.

    Args:
        options: what the plugin takes; None takes anything and leaves it as it is.
        raw: values as text (from a flag or a variable) or already typed (from a table); None means unset. A name may
            be written with `-` for `_`.
        origin: where `raw` came from, for the messages.

    Returns:
        Every declared option with its value or its default, except those with a problem; and the problems.
    """
    if options is None:
        return dict(raw), ()
    problems: list[Problem] = []
    given = _by_declared_name(options, raw, origin, problems)
    typed: dict[str, Any] = {}
    for option in options:
        value = given.get(option.name)
        try:
            typed[option.name] = option.default if value is None else _typed(option, value)
        except ValueError as error:
            message = f"{str(error).partition(', found')[0]}, found {HIDDEN}" if option.secret else str(error)
            problems.append(Problem(f"{origin}: {option.name}", message))
    return typed, tuple(problems)


def _by_declared_name(
    options: Sequence[Option], raw: Mapping[str, object], origin: str, problems: list[Problem]
) -> dict[str, object]:
    declared = {_key(option.name): option.name for option in options}
    given: dict[str, object] = {}
    for written, value in raw.items():
        name = declared.get(_key(written))
        if name is None:
            problems.append(Problem(f"{origin}: {written}", _unknown(written, list(declared.values()))))
        elif name in given:
            problems.append(Problem(f"{origin}: {written}", f"the option {name!r} is given twice, in two spellings"))
        else:
            given[name] = value
    return given


def _key(name: str) -> str:
    return name.strip().replace("-", "_").lower()


def _unknown(written: str, known: list[str]) -> str:
    hint = did_you_mean(written, known)
    if not hint:
        hint = f"; there are {', '.join(sorted(known))}" if known else "; there are none"
    return f"unknown option{hint}"


def _typed(option: Option, value: object) -> str | int | float | bool:
    """The value in the option's type. Raises ValueError that says what was expected."""
    if option.type is bool:
        return _boolean(value)
    if option.type is str:
        return _text(value)
    unit = f" of {option.unit}" if option.unit else ""
    return _whole(value, unit) if option.type is int else _number(value, unit)


def _boolean(value: object) -> bool:
    found = truth(value)
    if found is None:
        raise ValueError(f"expected true or false, found {value!r}")
    return found


def _text(value: object) -> str:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"expected text, found {value!r}")


def _whole(value: object, unit: str) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ValueError(f"expected a whole number{unit}, found {value!r}") from None


def _number(value: object, unit: str) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"expected a number{unit}, found {value!r}")
    return number
