"""The records that registration hooks return: a name for users, a summary, typed options and a factory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.interfaces.backend import RendezvousBackend
    from elastic_core.interfaces.handler import RendezvousHandler, RendezvousParameters
    from elastic_core.interfaces.health import AgentView, HealthCheckServer
    from elastic_core.interfaces.server import StoreServer
    from elastic_core.interfaces.store import Store
    from elastic_core.interfaces.watchdog import Watchdog

OptionType = type[str] | type[int] | type[float] | type[bool]


@dataclass(frozen=True)
class Option:
    """One option that a plugin takes: `name=value` in `--rdzv-conf` and the like, or a key of a config table.

    `default` None means "unset". `unit` is for people ("seconds", "bytes"), empty where there is none. The value of one
    that is `secret` is shown by nothing: not by `elastic explain`, and not in errors. A number is from `least` to
    `most`, and greater than `above`; the core refuses another one, so that a plugin reads only values that can be.
    """

    name: str
    type: OptionType
    default: str | int | float | bool | None
    help: str
    unit: str = ""
    secret: bool = False
    least: float | None = None
    above: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class RendezvousBackendRecord:
    """A way for nodes to find each other, selected by `--rdzv-backend`.

    `factory` receives parameters whose config holds every option of `options`, typed, defaults filled in.
    `options` None (a handler written for torchrun) takes any option, as text.

    Args:
        open_backend: the backend alone, for `elastic status` and `elastic drain`: a client of a store that stands,
            never its host, and no node. An option `join_timeout` is how many seconds connecting may take; the bounds of
            `params` are placeholders, and its node is None. None: these commands do not work with this backend.
        serve: a server of the store for `elastic serve`, given the endpoint (`host:port`; the host `0.0.0.0` stands for
            all addresses) and how many nodes to have room for. None: there is nothing to serve.
        forkable: whether the agent's process may be forked while the handler lives, as functions are that are started
            by `fork`. False for clients whose threads or connections a fork breaks.
    """

    name: str
    summary: str
    factory: Callable[[RendezvousParameters], RendezvousHandler]
    options: tuple[Option, ...] | None = ()
    aliases: tuple[str, ...] = ()
    open_backend: Callable[[RendezvousParameters], RendezvousBackend] | None = None
    serve: Callable[[str, int], StoreServer] | None = None
    forkable: bool = True


@dataclass(frozen=True)
class StoreRecord:
    """A key-value store; `factory` receives its options, typed, defaults filled in. A rendezvous backend of the same
    name comes with it, unless its plugin brings one itself.

    Args:
        factory: called for every connection, from several threads; what it returns is used by one thread at a time, and
            closed if it has a `close`.
        shared: whether other processes reach the same store. False: no backend comes with it.
    """

    name: str
    summary: str
    factory: Callable[[Mapping[str, Any]], Store]
    options: tuple[Option, ...] | None = ()
    aliases: tuple[str, ...] = ()
    shared: bool = True


@dataclass(frozen=True)
class WatchdogRecord:
    """A way to notice hung workers, selected by `--watchdog`; `factory` receives the run id and its options."""

    name: str
    summary: str
    factory: Callable[[str, Mapping[str, Any]], Watchdog]
    options: tuple[Option, ...] | None = ()
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class HealthEndpointRecord:
    """A health endpoint, selected by `--health`; `factory` receives the agent's view, `port`, `timeout`
    (seconds) and its options."""

    name: str
    summary: str
    factory: Callable[[AgentView, int, float, Mapping[str, Any]], HealthCheckServer]
    options: tuple[Option, ...] | None = ()
    aliases: tuple[str, ...] = ()


Record = RendezvousBackendRecord | StoreRecord | WatchdogRecord | HealthEndpointRecord
