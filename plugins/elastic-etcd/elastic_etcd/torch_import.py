"""torch, imported when a store is first asked for, and told not to print its C++ traces.

torch reads its log level from the environment while it is imported, so the variable is set for just that long: workers
are to inherit the environment as the user made it. Where torch was imported before, or the user chose a level, things
stay as they are.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

_LEVEL = "TORCH_CPP_LOG_LEVEL"
_lock = threading.Lock()


def distributed() -> Any:
    """The module `torch.distributed`."""
    with _lock:
        if "torch" in sys.modules or _LEVEL in os.environ:
            return importlib.import_module("torch.distributed")
        os.environ[_LEVEL] = "FATAL"
        try:
            return importlib.import_module("torch.distributed")
        finally:
            os.environ.pop(_LEVEL, None)
