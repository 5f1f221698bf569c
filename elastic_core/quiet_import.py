"""Imports a module with an environment variable that is set only during the import."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

_lock = threading.Lock()


def import_with(module: str, variable: str, value: str) -> Any:
    """Import `module` while `variable` is set to `value` in the environment, and return the module.

    The variable is removed afterward, because workers must inherit the environment as the user has set it. The variable
    is not changed if the module's package has already been imported or the user has set the variable. Thread-safe: only
    one import runs at a time.

    Raises:
        ImportError: there is no such module, or it cannot be imported.
    """
    with _lock:
        if module.partition(".")[0] in sys.modules or variable in os.environ:
            return importlib.import_module(module)
        os.environ[variable] = value
        try:
            return importlib.import_module(module)
        finally:
            os.environ.pop(variable, None)
