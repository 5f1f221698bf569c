"""Modules that read the environment while they are imported, and no more afterwards."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

_lock = threading.Lock()


def import_with(module: str, variable: str, value: str) -> Any:
    """The module of this name, imported while `variable` is set to `value` in the environment.

    The variable is set for just that long: workers are to inherit the environment as the user made it. Where the
    module's package was imported before, or the user has set the variable, things stay as they are. One import at a
    time, whichever thread asks.

    Raises:
        ImportError: there is none, or it cannot be imported.
    """
    with _lock:
        if module.partition(".")[0] in sys.modules or variable in os.environ:
            return importlib.import_module(module)
        os.environ[variable] = value
        try:
            return importlib.import_module(module)
        finally:
            os.environ.pop(variable, None)
