"""Compares our names with torch's: constructors, functions, methods, and members of enums."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import types
from typing import Any

from elastic_core.compat.names import MODULES

_UNTOLD = inspect.Parameter.empty
_METHODS = (types.FunctionType, staticmethod, classmethod, property)


def differences() -> dict[str, str]:
    """Return the differences by name (the module without `torch.distributed.`, and the name). Names without a
    difference are omitted. A name that several of torch's modules have belongs to the first of them."""
    found, seen = {}, set()
    for module, names in MODULES.items():
        theirs = importlib.import_module(module)
        for name in sorted(public(theirs)):
            one = getattr(theirs, name)
            if isinstance(one, type | type(public)) and id(one) in seen:
                continue
            seen.add(id(one))
            text = "not provided"
            if name in names:
                text = difference(one, getattr(importlib.import_module(names[name]), name))
            if text:
                found[f"{module.removeprefix('torch.distributed.')}.{name}"] = text
    return found


def public(module: Any) -> set[str]:
    """Return the public names of a torch module: those in `__all__`, those that it defines, and those that a package
    takes from its own modules."""
    if hasattr(module, "__all__"):
        return set(module.__all__)
    home = module.__name__ + ("." if hasattr(module, "__path__") else "")
    return {
        name
        for name, one in vars(module).items()
        if not name.startswith("_") and f"{getattr(one, '__module__', '')}.".startswith(home)
    }


def difference(theirs: Any, ours: Any) -> str:
    """Describe the difference; empty if there is none."""
    if isinstance(theirs, type) and issubclass(theirs, enum.Enum):
        return "" if dict(_members(theirs)) == dict(_members(ours)) else "other members"
    told = [_call(theirs, ours)] if isinstance(theirs, type | types.FunctionType) else []
    if isinstance(theirs, type):
        if issubclass(theirs, Exception) and not issubclass(ours, Exception):
            told.append("no exception")
        for name, method in _methods(theirs).items():
            if not (hasattr(ours, name) or name in inspect.get_annotations(ours)):
                told.append(f"no `{name}`")
            elif text := _call(method, inspect.getattr_static(ours, name, None)):
                told.append(f"`{name}`: {text}")
    return "; ".join(filter(None, told))


def _members(kind: Any) -> Any:
    return ((name, member.value) for name, member in kind.__members__.items())


def _methods(kind: type) -> dict[str, Any]:
    return {
        name: inspect.getattr_static(kind, name)
        for name in dir(kind)
        if not name.startswith("_")
        and any(name in vars(base) for base in kind.__mro__ if base.__module__.startswith("torch."))
        and isinstance(inspect.getattr_static(kind, name), _METHODS)
    }


def _call(theirs: Any, ours: Any) -> str:
    if isinstance(theirs, property) or _takes_anything(theirs):
        return ""
    wanted, found = (_parameters(one) for one in (theirs, ours))
    told = [f"no `{name}`" for name in wanted if name not in found]
    if [name for name in wanted if name in found] != [name for name in found if name in wanted]:
        told.append("another order")
    elif not told and [name for name in found if name != "**"][: len(wanted.keys() - {"**"})] != [
        name for name in wanted if name != "**"
    ]:
        told.append("others stand between")
    told += [
        f"`{name}={found[name]}` (torch: {wanted[name]})"
        for name in wanted
        if name in found and found[name] != wanted[name]
    ]
    return ", ".join([*told, *(f"needs `{name}`" for name in found if name not in wanted and found[name] == "none")])


def _parameters(one: Any) -> dict[str, str]:
    """Return the defaults of the arguments by name, as text; `none` for a required argument."""
    call = getattr(one, "__func__", one)
    made = {field.name: field.default_factory for field in dataclasses.fields(one)} if _is_dataclass(one) else {}
    found = {}
    for name, parameter in inspect.signature(call).parameters.items():
        if name in ("self", "cls"):
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            found["**"] = "any"
        elif made.get(name, dataclasses.MISSING) is not dataclasses.MISSING:
            found[name] = repr(made[name]()) if made[name] in (dict, list, str) else "made"
        else:
            found[name] = _default(parameter.default)
    return found


def _takes_anything(one: Any) -> bool:
    """Return whether an exception only has the constructor of all exceptions."""
    return isinstance(one, type) and issubclass(one, Exception) and "__init__" not in vars(one)


def _is_dataclass(one: Any) -> bool:
    return isinstance(one, type) and dataclasses.is_dataclass(one)


def _default(value: Any) -> str:
    if value is _UNTOLD:
        return "none"
    if isinstance(value, enum.Enum):
        return value.name
    return str(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)
