"""`expires`: a timer around a block of code, and where its client comes from."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
import threading
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock
from elastic_core.watchdog.timer import TimerClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

CLIENT = "ELASTIC_TIMER_CLIENT"
"""The variable by which a watchdog says what makes its client: `module:name` of something that is called without
arguments in the worker."""

_CLOCK = SystemClock()
_client: TimerClient | None = None
_found: TimerClient | None = None


def configure(timer_client: TimerClient) -> None:
    """Set the client of `expires` in this process. Needed only to use another one than that of the agent's watchdog."""
    global _client
    _client = timer_client


def expires(
    after: float, scope: str | None = None, client: TimerClient | None = None
) -> contextlib.AbstractContextManager[None]:
    """A worker that does not leave the block in time hangs, and its watchdog ends it::

        with expires(after=60):
            torch.distributed.all_reduce(tensor)

    Args:
        after: seconds.
        scope: what the block is, for people; file and line where None. A process has one timer for each scope, so
            blocks that run at the same time need different ones. (Threads have them, where it is None.)
        client: None for the one given to `configure`, else the one of the agent's watchdog.

    Raises:
        RuntimeError: nobody watches this process, so that there is no client.
        OSError: the watchdog cannot be reached. Only on the way in: leaving the block never raises.
        ValueError: `after` is no number of seconds, or `scope` is too long.
    """
    if not (math.isfinite(after) and after >= 0):
        raise ValueError(f"expected after how many seconds the block is to be left, found {after!r}")
    return _guarded(client or _client or _watchdogs(), scope or _here(sys._getframe(1)), after)


@contextlib.contextmanager
def _guarded(client: TimerClient, scope: str, after: float) -> Iterator[None]:
    client.acquire(scope, _CLOCK.timestamp() + after)
    try:
        yield
    finally:
        client.release(scope)


def _here(caller: FrameType) -> str:
    """File and line; two threads may be there at once, and each has a timer of its own."""
    place = f"{caller.f_code.co_filename}#{caller.f_lineno}"
    thread = threading.get_native_id()
    return place if thread == os.getpid() else f"{place} in thread {thread}"


def _watchdogs() -> TimerClient:
    """The client of the agent's watchdog."""
    global _found
    if _found is None:
        _found = _made(os.environ.get(CLIENT, ""))
    return _found


def _forget() -> None:
    """A forked child may be the worker of another agent."""
    global _found
    _found = None


os.register_at_fork(after_in_child=_forget)


def _made(maker: str) -> TimerClient:
    """What the agent's watchdog has left for its workers."""
    module, _, name = maker.partition(":")
    if not name:
        raise RuntimeError(
            f"expected a watchdog for the timers of this process, found none: {CLIENT} is {maker!r}; start the script "
            "with `elastic run --watchdog=file` (pip install elastic-file-timer), or call "
            "elastic_core.watchdog.configure with a client"
        )
    try:
        client = getattr(importlib.import_module(module), name)()
    except Exception as error:
        raise RuntimeError(
            f"expected that {maker} of {CLIENT} makes a timer client, found {type(error).__name__}: {error}; is the "
            "watchdog's distribution installed where the workers run?"
        ) from error
    if not isinstance(client, TimerClient):
        raise RuntimeError(f"expected that {maker} of {CLIENT} makes a TimerClient, found {type(client).__name__}")
    return client
