"""torch, imported when it is first needed, and told not to print its C++ traces.

torch's sockets write a stack trace to stderr for every refused connection and every wait that times out. All of these
come back as errors too, which we report in our own words. torch reads its log level while it is imported.
"""

from __future__ import annotations

from typing import Any

from elastic_core.quiet_import import import_with


def distributed() -> Any:
    """The module `torch.distributed`."""
    return import_with("torch.distributed", "TORCH_CPP_LOG_LEVEL", "FATAL")
