"""Converts the options that users write into the types that a plugin declares, and reports all problems together. Also
defines the options that all backends with dynamic rounds share.

Plugins import this module when they are loaded, so it must not import `elastic_core.rendezvous`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.errors import Problem
from elastic_core.hooks.records import Option
from elastic_core.parsing import parser_of
from elastic_core.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from elastic_core.clock import Duration

T = TypeVar("T")

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


def needed(options: Sequence[Option] | None, raw: Mapping[str, object]) -> dict[str, object]:
    """Return `raw` without the options that are `not_needed`."""
    unused = not_needed(options, raw)
    return {name: value for name, value in raw.items() if name not in unused}


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


JOIN: Duration = 600.0
LAST_CALL: Duration = 5.0
CLOSE: Duration = 60.0
HEARTBEAT: Duration = 2.0
CONNECT: Duration = 60.0
KEEP_ALIVE_INTERVAL: Duration = 1.0
KEEP_ALIVE_MAX_ATTEMPT = 5

BACKEND_OPTIONS: tuple[Option, ...] = (
    Option(
        "join_timeout", float, JOIN, "time limit for a round to form while no other round is active", "seconds", above=0
    ),
    Option(
        "last_call_timeout",
        float,
        LAST_CALL,
        "how long to wait for more nodes after MIN nodes have joined",
        "seconds",
        least=0,
    ),
    Option("close_timeout", float, CLOSE, "how long members of the previous round have to rejoin", "seconds", above=0),
    Option(
        "heartbeat_timeout", float, HEARTBEAT, "time until a silent store is logged as an outage", "seconds", above=0
    ),
    Option("connect_timeout", float, CONNECT, "time limit for the store's first response", "seconds", above=0),
    Option("keep_alive_interval", float, KEEP_ALIVE_INTERVAL, "time between a node's heartbeats", "seconds", above=0),
    Option(
        "keep_alive_max_attempt",
        int,
        KEEP_ALIVE_MAX_ATTEMPT,
        "missed heartbeats after which a node is considered lost",
        least=2,
    ),
    Option("secret_file", str, None, "file with the shared signing secret; same as --rdzv-secret-file"),
)
