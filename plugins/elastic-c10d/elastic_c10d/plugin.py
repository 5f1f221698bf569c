"""Registers this package's rendezvous backends and stores. Importing this module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.plugin import BACKEND_OPTIONS as SHARED
from elastic_core.plugin import Option, Problem, RendezvousBackendRecord, StoreRecord, find_option, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from elastic_core.plugin import (
        Context,
        RendezvousBackend,
        RendezvousHandler,
        RendezvousParameters,
        Settings,
        Store,
        StoreServer,
    )

T = TypeVar("T")
_CONNECTION = (
    Option(
        "outage_grace",
        float,
        30.0,
        "how long workers keep running after the failure timeout if the store does not answer but its machine does",
        "seconds",
        least=0,
    ),
    Option("read_timeout", float, 60.0, "time limit for a store operation", "seconds", above=0),
)
_OF_TCP = tuple(option.name for option in _CONNECTION)
_FIRST = Option(
    "connect_timeout",
    float,
    None,
    "time limit for the first connection; defaults to join_timeout, because the store's host must join first",
    "seconds",
    above=0,
)
_SHARED = tuple(_FIRST if option.name == _FIRST.name else option for option in SHARED)
C10D = (
    *_SHARED,
    Option("store_type", str, "tcp", "tcp, or file if the endpoint is the path of a file that all nodes share"),
    Option(
        "is_host", bool, None, "whether this node hosts the store; by default the node that can bind the endpoint does"
    ),
    *_CONNECTION,
)
_FILE = tuple(option for option in C10D if option.name not in ("store_type", "is_host", *_OF_TCP))
_STATIC = (
    *(option for option in _SHARED if option.name != "last_call_timeout"),
    Option("master_addr", str, None, "address of rank 0, used without an endpoint (127.0.0.1 if unset)"),
    Option("master_port", int, None, "port of rank 0 (29500 if unset)"),
    Option("rank", int, None, "rank of this node, counting from 0"),
    Option("timeout", float, None, "torchrun's name for join_timeout; overrides it", "seconds", above=0),
    *_CONNECTION,
)


def _handler(context: Context, params: RendezvousParameters, master: str = "") -> RendezvousHandler:
    _look_for_torch()
    from elastic_c10d.create import create_parts
    from elastic_core.plugin import create_handler, options_of

    backend, stores = create_parts(params, master)
    if params.get("connect_timeout") is None:
        params.config["connect_timeout"] = options_of(params, C10D)["join_timeout"]
    return create_handler(None, backend, params, stores, params.backend)


def _static_handler(context: Context, params: RendezvousParameters) -> RendezvousHandler:
    from elastic_c10d.static import as_dynamic, master_of

    return _handler(context, as_dynamic(params), master_of(params))


def _with_a_file(function: Callable[[Context, RendezvousParameters], T]) -> Callable[..., T]:
    """Return the function for the backend `file`, which is `c10d` with a fixed `store_type`."""
    return lambda context, params: function(context, params.having({"store_type": "file"}))


def _is_torch_missing() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is None


def _look_for_torch() -> None:
    """Raise ModuleNotFoundError if torch is missing. If the import failed later, in a background thread, the error
    would look like an unreachable store."""
    if _is_torch_missing():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")


def _open(context: Context, params: RendezvousParameters) -> RendezvousBackend:
    _look_for_torch()
    from elastic_c10d.create import open_backend

    return open_backend(params)


def _serve(context: Context, endpoint: str, max_nodes: int) -> StoreServer:
    from elastic_c10d.server import StoreServer

    return StoreServer(endpoint, max_nodes)


def _tcp_store(context: Context) -> Store:
    from elastic_c10d.create import tcp_store

    return tcp_store(context.options)


def _file_store(context: Context) -> Store:
    from elastic_c10d.create import file_connector

    store: Store = file_connector(context.options["path"]).connect().store
    return store


def _hash_store(context: Context) -> Store:
    from elastic_c10d.torch_store import distributed

    store: Store = distributed().HashStore()
    return store


def _missing() -> Iterator[Problem]:
    if _is_torch_missing():
        yield Problem("--rdzv-backend", "the backend requires torch; pip install torch")


def _problems(settings: Settings) -> Iterator[Problem]:
    yield from _missing()
    if settings.nnodes.max > 1 and not settings.rdzv_endpoint:
        yield Problem(
            "--rdzv-endpoint",
            f"--nnodes={settings.nnodes} requires --rdzv-endpoint=HOST:PORT, the same on every node (a static job uses "
            "--master-addr and --node-rank instead)",
        )


def _hosts(settings: Settings) -> list[tuple[str, int]]:
    from elastic_c10d.endpoint import parse_endpoints

    if not settings.rdzv_endpoint.strip() or (find_option(settings.rdzv_conf, "store_type") or "").lower() == "file":
        return []
    least = 0 if settings.nnodes.max == 1 else 1  # a single-node job may use any port
    return [(one.host, one.port) for one in parse_endpoints(settings.rdzv_endpoint, least).each]


def _static_defaults(settings: Settings) -> Mapping[str, tuple[Any, str]]:
    from elastic_c10d.static import defaults

    return defaults(settings)


def _static_problems(settings: Settings) -> Iterator[Problem]:
    from elastic_c10d.static import problems

    yield from _missing()
    yield from problems(settings)


def _static_hosts(settings: Settings) -> list[tuple[str, int]]:
    from elastic_c10d.endpoint import parse_endpoint
    from elastic_c10d.static import DEFAULT_PORT

    endpoint = parse_endpoint(settings.rdzv_endpoint, default_port=DEFAULT_PORT)
    return [(endpoint.host, endpoint.port)]


@hookimpl
def elastic_rendezvous_backends() -> list[RendezvousBackendRecord]:
    return [
        RendezvousBackendRecord(
            "c10d",
            "rendezvous over a torch TCPStore, hosted by one of the nodes",
            _handler,
            C10D,
            aliases=("tcp",),
            open_backend=_open,
            serve=_serve,
            problems=_problems,
            hosts_of=_hosts,
            hosted=True,
        ),
        RendezvousBackendRecord(
            "static",
            "a fixed number of nodes with given ranks",
            _static_handler,
            _STATIC,
            open_backend=_open,
            defaults=_static_defaults,
            problems=_static_problems,
            hosts_of=_static_hosts,
            hosted=True,
        ),
        RendezvousBackendRecord(
            "file",
            "rendezvous over a torch FileStore on a shared disk",
            _with_a_file(_handler),
            _FILE,
            open_backend=_with_a_file(_open),
            problems=lambda _: _missing(),
            hosts_of=lambda _: (),
        ),
    ]


@hookimpl
def elastic_stores() -> list[StoreRecord]:
    return [
        StoreRecord(
            "tcp",
            "torch's TCPStore, one server and clients",
            _tcp_store,
            (
                Option("host", str, "127.0.0.1", "name or address of the server"),
                Option("port", int, 29400, "port of the server"),
                Option(
                    "is_host", bool, None, "whether to host the server in this process (default: if the port is free)"
                ),
                Option("timeout", float, 300.0, "time limit for connecting and waiting for keys", "seconds", above=0),
            ),
        ),
        StoreRecord(
            "file",
            "torch's FileStore, in a file on a shared disk",
            _file_store,
            (Option("path", str, "", "path of the file"),),
        ),
        StoreRecord(
            "hash", "torch's HashStore, in one process's memory (add does not wake waiters)", _hash_store, shared=False
        ),
    ]
