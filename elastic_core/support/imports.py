"""Lets packages import their names on first use (PEP 562), and imports modules with an environment variable set."""

from __future__ import annotations

import ast
import inspect
import os
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package that imports its names on first use. The names are those that
    the package imports under `if TYPE_CHECKING`, for type checkers.

    Assign the functions under `if not TYPE_CHECKING`, because type checkers accept any name from a module that has
    `__getattr__`. `package` is the package's `__name__`."""
    source = inspect.getsource(sys.modules[package])
    imports = (node for part in ast.parse(source).body if isinstance(part, ast.If) for node in part.body)
    found = [node for node in imports if isinstance(node, ast.ImportFrom)]
    home_of = {alias.name: node.module or "" for node in found for alias in node.names}

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
