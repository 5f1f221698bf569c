"""Names of the first torchelastic release, for programs that still catch these exceptions or use this registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.plugin import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousHandlerRegistry,
    RendezvousStateError,
    RendezvousTimeoutError,
)

if TYPE_CHECKING:
    from elastic_core.plugin import RendezvousHandler, RendezvousParameters

RendezvousException = RendezvousError
RendezvousClosedException = RendezvousClosedError
RendezvousTimeoutException = RendezvousTimeoutError
RendezvousNonRetryableError = RendezvousStateError


class RendezvousHandlerFactory(RendezvousHandlerRegistry):
    """The handler registry, with the first release's method name."""

    def create_rdzv_handler(self, rdzv_params: RendezvousParameters) -> RendezvousHandler:
        """See `create_handler`."""
        return self.create_handler(rdzv_params)
