"""Checks that a plugin's hooks are known and marked, and that its registration hooks return valid records.

A check that fails raises `InvalidPlugin` before any part of the plugin is used.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.hooks.discovery import InvalidPlugin
from elastic_core.hooks.records import CommandRecord, HealthCheckRecord, NoticeRecord, Option
from elastic_core.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pluggy

T = TypeVar("T")

_WORD = re.compile("[a-z0-9][a-z0-9-]*")
_TAKEN = ("plugins", "config", "help", "log-level", "log_level", "log-format", "log_format")
COMMANDS = ("run", "explain", "plugins", "status", "drain", "stop", "serve")
"""The core's commands, in the order of `elastic --help`."""


def check_hooks(plugin: object, pluggy_manager: pluggy.PluginManager, known: Collection[str]) -> None:
    """Raise InvalidPlugin for a class, an unknown hook, a hook wrapper, or an unmarked hook."""
    if isinstance(plugin, type):
        raise InvalidPlugin(f"expected a module or an object, found the class {plugin.__name__}; export an instance")
    problems = []
    for attribute in dir(plugin):
        options = pluggy_manager.parse_hookimpl_opts(plugin, attribute)
        if options is None:
            if attribute in known:
                problems.append(f"{attribute} is not marked; write @hookimpl above it")
            continue
        hook = options.get("specname") or attribute
        if hook not in known and not options.get("optionalhook"):
            problems.append(f"unknown hook {hook!r}{did_you_mean(hook, known)}")
        if options.get("wrapper") or options.get("hookwrapper"):
            problems.append(f"{hook} is a hook wrapper, which is not supported; write a plain function")
    if problems:
        raise InvalidPlugin("; ".join(problems))


def checked(hook: str, returned: Any, expected: type[T]) -> list[T]:
    """Check a registration hook's result and return it as a list. Raises InvalidPlugin if the result is invalid."""
    if not isinstance(returned, (list, tuple)):
        raise InvalidPlugin(f"{hook} must return a list of {expected.__name__}, but returned {_named(returned)}")
    for item in returned:
        if not isinstance(item, expected):
            raise InvalidPlugin(
                f"{hook} must return a list of {expected.__name__}, but the list contains {_named(item)}"
            )
        problems = list(_option_problems(item) if isinstance(item, Option) else _record_problems(item))
        if problems:
            raise InvalidPlugin("; ".join(f"{hook}: {problem}" for problem in problems))
    return list(returned)


def _named(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _record_problems(record: Any) -> Iterator[str]:
    names = (record.name, *record.aliases)
    if not all(isinstance(name, str) and name.strip() for name in names):
        yield f"expected a name (and aliases) with at least one letter, found {names!r}"
    if not callable(record.factory):
        yield f"the factory of {record.name!r} is not callable"
    for name in ("open_backend", "serve", "defaults", "problems", "hosts_of", "explain"):
        if getattr(record, name, None) is not None and not callable(getattr(record, name)):
            yield f"{name} of {record.name!r} is not callable"
    if isinstance(record, CommandRecord):
        yield from _command_problems(record)
    if isinstance(record, (HealthCheckRecord, NoticeRecord)) and record.options:
        yield f"{record.name!r} has options, which users cannot set; use elastic_add_options"
    if isinstance(record, HealthCheckRecord) and not (isinstance(record.timeout, (int, float)) and record.timeout > 0):
        yield f"expected a timeout above 0 seconds for {record.name!r}, found {record.timeout!r}"
    if isinstance(record, HealthCheckRecord) and not isinstance(record.when, (tuple, list, set, frozenset)):
        yield f"`when` of {record.name!r} must be a tuple of CheckMoment, not {record.when!r}"
    yield from _option_list_problems(record)


def _command_problems(record: Any) -> Iterator[str]:
    for name in (record.name, *record.aliases):
        if name in COMMANDS:
            yield f"the command name {name!r} is reserved for elastic itself"
        elif not _WORD.fullmatch(name):
            yield f"expected a command name of lower-case letters, digits and hyphens, found {name!r}"
    for option in record.options or ():
        if option.name in _TAKEN:
            yield f"the flag --{option.name} of the command {record.name!r} is reserved for elastic itself"
    if isinstance(record.settings, str) or isinstance(record.operands, str):
        yield f"the settings and operands of the command {record.name!r} must be tuples, not strings"


def _option_list_problems(record: Any) -> Iterator[str]:
    seen: set[str] = set()
    for option in record.options or ():
        if not isinstance(option, Option):
            yield f"the options of {record.name!r} include {_named(option)}, expected Option"
            continue
        if option.name in seen:
            yield f"{record.name!r} lists the option {option.name!r} twice"
        seen.add(option.name)
        yield from _option_problems(option)


def _option_problems(option: Option) -> Iterator[str]:
    if not isinstance(option.name, str) or not option.name.strip():
        yield f"expected an option name with at least one letter, found {option.name!r}"
    if option.type not in (str, int, float, bool):
        yield f"option {option.name!r}: expected the type str, int, float or bool, found {option.type!r}"
    elif not _fits(option):
        yield f"option {option.name!r}: expected a default of type {option.type.__name__}, found {option.default!r}"


def _fits(option: Option) -> bool:
    if option.default is None:
        return True
    types = (int, float) if option.type is float else option.type
    is_bool = isinstance(option.default, bool)  # bool is a subclass of int
    return isinstance(option.default, types) and is_bool == (option.type is bool)
