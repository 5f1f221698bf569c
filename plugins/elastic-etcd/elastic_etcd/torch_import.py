"""torch, imported when a store is first asked for, and told not to print its C++ traces.

torch reads its log level while it is imported.
"""

from __future__ import annotations

from typing import Any

from elastic_core.quiet_import import import_with


def distributed() -> Any:
    """The module `torch.distributed`."""
    return import_with("torch.distributed", "TORCH_CPP_LOG_LEVEL", "FATAL")
