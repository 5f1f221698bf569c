"""Timers for code that may hang. A worker acquires a timer before it runs such code, and releases the timer afterward.
A server in the agent detects timers that are not released in time. `expires` puts a timer around a block of code."""

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
from typing import TYPE_CHECKING, Any

from elastic_core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENT_VARIABLE = "ELASTIC_TIMER_CLIENT"
"""The environment variable in which a watchdog specifies its client factory. The value is `module:name`, where `name`
is a function without arguments. The function is called in the worker."""

_CLOCK = SystemClock()
_client: TimerClient | None = None


@dataclass
class TimerRequest:
    """A client's request to a server.

    Args:
        worker_id: identifies the worker; for most clients, the process id.
        scope_id: identifies the timer within the worker.
        expiration_time: the timer's deadline, in seconds since the epoch. A negative value releases the timer.
    """

    worker_id: Any
    scope_id: str
    expiration_time: float


class TimerClient(abc.ABC):
    """The worker's side of a timer. A client is thread-safe, and also works in forked child processes."""

    @abc.abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Start or restart this process's timer for this scope.

        Args:
            scope_id: describes the timer, for messages.
            expiration_time: when the timer expires, in seconds since the epoch.

        Raises:
            OSError: no server has accepted the request within a bounded time.
            ValueError: an argument is out of range.
        """

    @abc.abstractmethod
    def release(self, scope_id: str) -> None:
        """Stop the timer. Server problems raise no error, because the guarded block has already completed and must not
        fail now."""


def configure(timer_client: TimerClient) -> None:
    """Set the client that `expires` uses in this process. This is rarely needed, because the agent's watchdog provides
    a client."""
    global _client
    _client = timer_client


def expires(
    after: float, scope: str | None = None, client: TimerClient | None = None
) -> contextlib.AbstractContextManager[None]:
    """Guard a block of code: the watchdog kills this worker if the block takes longer than `after` seconds::

        with expires(after=60):
            torch.distributed.all_reduce(tensor)

    The function also works as a decorator, with a separate timer for each call of the decorated function.

    Args:
        after: the time limit in seconds.
        scope: describes the block, for messages (default: the block's file and line, with a separate scope for each
            thread). A process has only one timer per scope, so blocks that run concurrently need different scopes.
        client: the client to use (default: the client passed to `configure` or, if there is none, the one from the
            agent's watchdog).

    Raises:
        RuntimeError: this process has no watchdog, so there is no client.
        OSError: the watchdog cannot be reached. This is raised only on entry to the block, never on exit.
        ValueError: `after` is not a valid number of seconds, or `scope` is too long.
    """
    if not (math.isfinite(after) and after >= 0):
        raise ValueError(f"expected a time limit of at least 0 seconds, found {after!r}")
    caller = sys._getframe(1)
    return _guarded(client, scope, f"{caller.f_code.co_filename}#{caller.f_lineno}", after)


@contextlib.contextmanager
def _guarded(client: TimerClient | None, scope: str | None, place: str, after: float) -> Iterator[None]:
    """Guard a block. The client and the scope are determined on entry, because a decorator calls `expires` much
    earlier."""
    client, scope = client or _client or _watchdogs(), scope or _in_this_thread(place)
    client.acquire(scope, _CLOCK.timestamp() + after)
    try:
        yield
    finally:
        client.release(scope)


def _in_this_thread(place: str) -> str:
    """Return a separate scope for each thread, because threads that run the same block at the same time need separate
    timers."""
    thread = threading.get_native_id()
    return place if thread == os.getpid() else f"{place} in thread {thread}"


@functools.cache
def _watchdogs() -> TimerClient:
    maker = os.environ.get(CLIENT_VARIABLE, "")
    module, _, name = maker.partition(":")
    if not name:
        raise RuntimeError(
            f"this process has no watchdog for its timers ({CLIENT_VARIABLE} is {maker!r}); start the script with "
            "`elastic run --watchdog=file` (pip install elastic-file-timer), or call "
            "elastic_core.watchdog.configure with a client"
        )
    try:
        client = getattr(importlib.import_module(module), name)()
    except Exception as error:
        raise RuntimeError(
            f"{CLIENT_VARIABLE}={maker} cannot create a timer client: {type(error).__name__}: {error}; is the "
            "watchdog's distribution installed in the workers' environment?"
        ) from error
    if not isinstance(client, TimerClient):
        raise RuntimeError(f"{CLIENT_VARIABLE}={maker} must return a TimerClient, not a {type(client).__name__}")
    return client


os.register_at_fork(after_in_child=_watchdogs.cache_clear)  # a forked child may be the worker of another agent
