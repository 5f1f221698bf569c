"""What the plugin registers. Importing this imports neither grpc nor etcd3 nor torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.plugin import BACKEND_OPTIONS as SHARED
from elastic_core.plugin import Option, RendezvousBackendRecord, StoreRecord, hookimpl

if TYPE_CHECKING:
    from elastic_core.plugin import Context, RendezvousBackend, RendezvousHandler, RendezvousParameters, Settings, Store

CONNECTION = (
    Option("read_timeout", float, 5.0, "for etcd to answer an operation, on whichever member", "seconds", above=0),
    Option("protocol", str, None, "http or https; unset: as the endpoints say, or https where a certificate is given"),
    Option("ca_cert", str, None, "file of the authorities that servers must be certified by; unset: the machine's"),
    Option("ssl_cert", str, None, "file of a certificate for this client"),
    Option("ssl_cert_key", str, None, "file of its private key"),
    Option("user", str, None, "name to log in with"),
    Option("password", str, None, "its password; better left to a file or the environment", secret=True),
    Option("password_file", str, None, "a file that holds it, which no other user can read"),
    Option("password_env", str, None, "the variable that holds it; unset: ELASTIC_ETCD_PASSWORD"),
    Option("insecure_password", bool, False, "send it in plain text, which everybody on the way can read"),
    Option("prefix", str, "elastic", "what all keys begin with"),
)
LEASE_TTL = Option(
    "lease_ttl",
    float,
    None,
    "time after the last beat when etcd drops a node, 2 s at least; unset: interval times attempts",
    "seconds",
    least=2,
)
SERVING = (
    Option("serve", bool, False, "run an etcd member on each host in --rdzv-endpoint"),
    Option("serve_peer_port", int, None, "the peer port of these members; unset: each port plus 1", least=1),
    Option("serve_folder", str, None, "the folder for their data, such as /dev/shm; unset: with temporary files"),
)
ETCD = (
    *SHARED,
    *CONNECTION,
    LEASE_TTL,
    Option(
        "outage_grace",
        float,
        30.0,
        "that workers are kept while no member answers, beyond the time after which others call a node gone",
        "seconds",
        least=0,
    ),
    *SERVING,
)


def look_for_libraries() -> None:
    """At once: they are imported in another thread, which would only find that etcd cannot be reached."""
    from importlib.util import find_spec

    for module in ("grpc", "google.protobuf"):
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def _handler(context: Context, params: RendezvousParameters) -> RendezvousHandler:
    look_for_libraries()
    from elastic_etcd.backend.create import handler_for

    return handler_for(params)


def _open(context: Context, params: RendezvousParameters) -> RendezvousBackend:
    look_for_libraries()
    from elastic_etcd.backend.create import open_backend

    return open_backend(params)


def _store(context: Context) -> Store:
    from datetime import timedelta

    from elastic_etcd.backend.create import client_for
    from elastic_etcd.parameters import read_parameters
    from elastic_etcd.store import EtcdStore

    options = context.options
    parameters = read_parameters(options["endpoint"], options, origin="store", endpoint_origin="store: endpoint")
    # Beside the jobs: no run id is quoted to a name with a plus.
    prefix, timeout = f"/{parameters.prefix}/+store/", timedelta(seconds=options["timeout"])
    made: Store = EtcdStore(client_for(parameters), prefix, timeout, owns_client=True)
    return made


def hosts_of(settings: Settings) -> list[tuple[str, int]]:
    """The hosts of the cluster. Raises ConfigurationError."""
    from elastic_etcd.parameters import parse_endpoints

    return [(member.host, member.port) for member in parse_endpoints(settings.rdzv_endpoint)]


@hookimpl
def elastic_rendezvous_backends() -> list[RendezvousBackendRecord]:
    return [
        RendezvousBackendRecord(
            "etcd",
            "nodes meet at an etcd cluster, which the loss of one machine does not end",
            _handler,
            ETCD,
            aliases=("etcd-v2", "etcd-v3"),
            open_backend=_open,
            forkable=False,
            hosts_of=hosts_of,
        )
    ]


@hookimpl
def elastic_stores() -> list[StoreRecord]:
    return [
        StoreRecord(
            "etcd",
            "a store in an etcd cluster",
            _store,
            (
                Option("endpoint", str, "127.0.0.1:2379", "host:port of its members, with commas between them"),
                *CONNECTION,
                Option("timeout", float, 300.0, "for waiting for a key", "seconds", above=0),
            ),
        )
    ]
