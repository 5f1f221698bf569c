"""Asks handlers that were written for torchrun not to share one store with the workers of all rounds.

torch's dynamic handler hosts one store and hands it to the workers of every round, who would find the addresses of dead
peers there; and once rank 0 is lost, or a node comes in, it tells the members different addresses. It looks for a
variable at each call: with that set, rank 0 gives an address and a new port in every round, to all members alike.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

VARIABLE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


class HeldVariable:
    """A variable that is there while somebody holds it, unless it is there anyway; any thread.

    Calls overlap in programs that run several jobs, so only the last one takes it away.
    """

    def __init__(self, name: str, value: str, environ: MutableMapping[str, str]) -> None:
        self._name = name
        self._value = value
        self._environ = environ
        self._lock = threading.Lock()
        self._holders = 0
        self._ours = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._take()
        try:
            yield
        finally:
            self._let_go()

    def _take(self) -> None:
        with self._lock:
            if self._holders == 0:
                self._ours = self._name not in self._environ
                self._environ.setdefault(self._name, self._value)
            self._holders += 1

    def _let_go(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0 and self._ours:
                self._environ.pop(self._name, None)


_switch = HeldVariable(VARIABLE, "1", os.environ)  # one for the process, as the environment is


def store_not_shared() -> contextlib.AbstractContextManager[None]:
    """Around a call in which torch decides about the store of the workers. What the user has set stays. Workers do not
    get it: what they inherit is copied when the agent is put together, and none is started meanwhile."""
    return _switch.held()
