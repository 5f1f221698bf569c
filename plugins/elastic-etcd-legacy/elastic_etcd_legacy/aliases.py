"""The names of the first torchelastic release, for programs that still catch or register by them."""

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
    """The registry, with the method name of that release."""

    def create_rdzv_handler(self, rdzv_params: RendezvousParameters) -> RendezvousHandler:
        """See `create_handler`."""
        return self.create_handler(rdzv_params)
