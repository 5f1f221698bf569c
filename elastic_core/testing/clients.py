"""What the tests of a backend have in common: several clients, and calls at the same time."""

from __future__ import annotations

import contextlib
import threading
import unittest
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.testing.waiting import Background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elastic_core.clock import Duration
    from elastic_core.interfaces.backend import RendezvousBackend

T = TypeVar("T")

LONG: Duration = 30.0  # what hangs is found out after this


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make all these calls at the same time; what they returned, in their order. Raises what one of them raised."""
    gate = threading.Barrier(len(calls))

    def after_the_gate(call: Callable[[], T]) -> T:
        gate.wait(LONG)
        return call()

    running = [Background(partial(after_the_gate, call), LONG) for call in calls]
    return [call.result() for call in running]


def raised(function: Callable[[], object]) -> Exception | None:
    """What the call raises, in a thread, so that one that hangs is found out; None if nothing."""
    try:
        Background(function, LONG).result()
    except AssertionError:
        raise
    except Exception as error:  # noqa: BLE001 - it is handed out
        return error
    return None


class Clients:
    """What a plugin tells about its backend, for the contract."""

    def peer(self, backend: Any) -> Any:
        """Another client of the same job, as another node has one. The contract closes it, if it has a `close`."""
        raise NotImplementedError("expected a method peer(backend) that makes another client of the same job")

    def other_job(self, backend: Any) -> Any:
        """A client of the same store for another job. Closed likewise."""
        raise unittest.SkipTest("it does not say how to make a client for another job (other_job)")

    def lose(self, backend: Any) -> None:
        """Take the store away for good, as when its machine is lost. Nothing is asked of `backend` afterwards but to
        say so in time."""
        raise unittest.SkipTest("it does not say how to take its store away (lose)")

    def spoil(self, backend: Any) -> None:
        """Write something where the state belongs that this backend would never write."""
        raise unittest.SkipTest("it does not say how to spoil its state (spoil)")

    @contextlib.contextmanager
    def peers(self, backend: Any, count: int) -> Iterator[list[Any]]:
        """So many clients of the same job beside `backend`, closed at the end."""
        with contextlib.ExitStack() as ending:
            made = []
            for _ in range(count):
                client = self.peer(backend)
                ending.callback(close, client)
                made.append(client)
            yield made


def close(backend: RendezvousBackend) -> None:
    """A backend of two methods need not have a `close`."""
    ending: Callable[[], object] | None = getattr(backend, "close", None)
    if ending is not None:
        ending()
