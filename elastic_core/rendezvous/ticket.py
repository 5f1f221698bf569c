"""Tickets: what the keeper was asked for, and how whoever asked learns that it is done."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.rendezvous.state import State


class Ticket:
    """Something that the keeper was asked for. `done` is set when it has been carried out, or when `fault` says why it
    never can be.

    Args:
        action: changes the state; None: something else was asked for.
    """

    def __init__(self, action: Callable[[State], State] | None = None) -> None:
        self.action = action
        self.done = threading.Event()
        self.fault: Exception | None = None
