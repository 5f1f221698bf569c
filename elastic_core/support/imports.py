"""Lets packages import their names on first use (PEP 562), and imports modules with an environment variable set."""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package that imports its names on first use.

    Assign them under `if not TYPE_CHECKING`, because type checkers accept any name from a module that has
    `__getattr__`.

    Args:
        package: the package's `__name__`.
        homes: maps each module to the names that it provides, separated by spaces.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name]), name)

    return load, lambda: list(home_of)


_lock = threading.Lock()


def import_with(module: str, variable: str, value: str) -> Any:
    """Import and return `module`, with `variable` set to `value` in the environment. The variable is removed afterward,
    because workers inherit the environment. It is not changed if the module's package has already been imported or the
    user has set it. Thread-safe: only one import runs at a time. Raises ImportError if the module cannot be
    imported."""
    with _lock:
        if module.partition(".")[0] in sys.modules or variable in os.environ:
            return import_module(module)
        os.environ[variable] = value
        try:
            return import_module(module)
        finally:
            os.environ.pop(variable, None)
