"""Timers: a worker acquires one before something that may hang and releases it afterwards; a server, which lives in the
agent, notices those that were not released in time. `expires` is a timer around a block of code.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import importlib
import math
import os
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

CLIENT_VARIABLE = "ELASTIC_TIMER_CLIENT"
"""The variable by which a watchdog names the maker of its client: `module:name` of a function without arguments, which
is called in the worker."""

_CLOCK = SystemClock()
_client: TimerClient | None = None


@dataclass
class TimerRequest:
    """What a client asks of a server.

    Args:
        worker_id: identifies the worker; its process id, for most clients.
        scope_id: what the timer is for.
        expiration_time: when it expires, seconds since the epoch; less than 0 to release it.
    """

    worker_id: Any
    scope_id: str
    expiration_time: float


class TimerClient(abc.ABC):
    """The worker's side. Any thread, also in a process that was forked since."""

    @abc.abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Start the timer of this process with this scope, or start it anew.

        Args:
            scope_id: what it is for, in words for people.
            expiration_time: when it expires, seconds since the epoch.

        Raises:
            OSError: no server takes the request. Raised within a bound.
            ValueError: arguments that no server can take.
        """

    @abc.abstractmethod
    def release(self, scope_id: str) -> None:
        """Stop it. Never raises because of the server: the guarded block is done, and must not fail after that."""


def configure(timer_client: TimerClient) -> None:
    """Set the client of `expires` in this process. The agent's watchdog brings one, so this is seldom needed."""
    global _client
    _client = timer_client


def expires(
    after: float, scope: str | None = None, client: TimerClient | None = None
) -> contextlib.AbstractContextManager[None]:
    """A worker that does not leave the block in time hangs, and its watchdog ends it::

        with expires(after=60):
            torch.distributed.all_reduce(tensor)

    It is a decorator as well: each call of the function is such a block.

    Args:
        after: seconds.
        scope: describes the block, for people; None: its file and line. A process has one timer for each scope, so
            blocks that run at the same time need different scopes. (With None, threads get different ones.)
        client: None for the client given to `configure`, or else that of the agent's watchdog.

    Raises:
        RuntimeError: no watchdog watches this process, so there is no client.
        OSError: the watchdog cannot be reached. Raised on entry only: leaving the block never raises.
        ValueError: `after` is not a number of seconds, or `scope` is too long.
    """
    if not (math.isfinite(after) and after >= 0):
        raise ValueError(f"expected how many seconds the block may take, found {after!r}")
    caller = sys._getframe(1)
    return _guarded(client, scope, f"{caller.f_code.co_filename}#{caller.f_lineno}", after)


@contextlib.contextmanager
def _guarded(client: TimerClient | None, scope: str | None, place: str, after: float) -> Iterator[None]:
    """Client and scope are found when the block is entered: as a decorator, `expires` is called long before."""
    client, scope = client or _client or _watchdogs(), scope or _in_this_thread(place)
    client.acquire(scope, _CLOCK.timestamp() + after)
    try:
        yield
    finally:
        client.release(scope)


def _in_this_thread(place: str) -> str:
    """Two threads may be at one place at once, and each has a timer of its own."""
    thread = threading.get_native_id()
    return place if thread == os.getpid() else f"{place} in thread {thread}"


@functools.cache
def _watchdogs() -> TimerClient:
    """The client that the variable of the agent's watchdog names."""
    maker = os.environ.get(CLIENT_VARIABLE, "")
    module, _, name = maker.partition(":")
    if not name:
        raise RuntimeError(
            f"expected a watchdog for the timers of this process, found none: {CLIENT_VARIABLE} is {maker!r}; start "
            "the script with `elastic run --watchdog=file` (pip install elastic-file-timer), or call "
            "elastic_core.watchdog.configure with a client"
        )
    try:
        client = getattr(importlib.import_module(module), name)()
    except Exception as error:
        raise RuntimeError(
            f"expected that {maker} of {CLIENT_VARIABLE} makes a timer client, found {type(error).__name__}: {error}; "
            "is the watchdog's distribution installed where the workers run?"
        ) from error
    if not isinstance(client, TimerClient):
        raise RuntimeError(
            f"expected that {maker} of {CLIENT_VARIABLE} makes a TimerClient, found {type(client).__name__}"
        )
    return client


os.register_at_fork(after_in_child=_watchdogs.cache_clear)  # a forked child may be the worker of another agent
