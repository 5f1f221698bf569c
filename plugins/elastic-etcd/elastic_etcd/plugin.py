"""Registers the backend and the store. Importing this module imports neither grpc nor etcd3 nor torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.plugin import BACKEND_OPTIONS as SHARED
from elastic_core.plugin import Option, RendezvousBackendRecord, StoreRecord, hookimpl

if TYPE_CHECKING:
    from elastic_core.plugin import Context, RendezvousBackend, RendezvousHandler, RendezvousParameters, Settings, Store

PREFIX = "elastic"
CONNECTION = (
    Option("read_timeout", float, 5.0, "time limit for an operation, across all members", "seconds", above=0),
    Option(
        "protocol", str, None, "http or https; defaults to the endpoints' scheme, or to https if a certificate is set"
    ),
    Option(
        "ca_cert", str, None, "PEM file with the CAs that sign the servers' certificates; defaults to the system's CAs"
    ),
    Option("ssl_cert", str, None, "PEM file with this client's certificate"),
    Option("ssl_cert_key", str, None, "PEM file with the certificate's private key"),
    Option("user", str, None, "user name to authenticate with"),
    Option("password", str, None, "the user's password; safer in a file or the environment", secret=True),
    Option("password_file", str, None, "file with the password, which other users must not be able to read"),
    Option("password_env", str, None, "environment variable with the password; defaults to ELASTIC_ETCD_PASSWORD"),
    Option("insecure_password", bool, False, "allow the password to be sent unencrypted over the network"),
    Option("prefix", str, PREFIX, "prefix of all keys"),
)
LEASE_TTL = Option(
    "lease_ttl",
    float,
    None,
    "time until etcd drops a silent node; defaults to keep_alive_interval times keep_alive_max_attempt",
    "seconds",
    least=2,
)
SERVING = (
    Option("serve", bool, False, "run an etcd member on each host in --rdzv-endpoint"),
    Option("serve_peer_port", int, None, "peer port of these members; defaults to each client port plus 1", least=1),
    Option(
        "serve_folder",
        str,
        None,
        "folder in which members store their data, for example /dev/shm; defaults to the system's temporary folder",
    ),
)
ETCD = (
    *SHARED,
    *CONNECTION,
    LEASE_TTL,
    Option(
        "outage_grace",
        float,
        30.0,
        "how long workers keep running after the failure timeout if no etcd member answers",
        "seconds",
        least=0,
    ),
    *SERVING,
)


def look_for_libraries() -> None:
    """Report missing libraries now. The thread that imports them would only report that etcd is unreachable."""
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
    from elastic_etcd.store.torch_store import EtcdStore

    options = context.options
    parameters = read_parameters(options["endpoint"], options, origin="store", endpoint_origin="store: endpoint")
    # These keys cannot clash with a job's keys, because no quoted run id contains a plus sign.
    prefix, timeout = f"/{parameters.prefix}/+store/", timedelta(seconds=options["timeout"])
    made: Store = EtcdStore(client_for(parameters), prefix, timeout, owns_client=True)
    return made


def hosts_of(settings: Settings) -> list[tuple[str, int]]:
    """Return the cluster's hosts. Raises ConfigurationError."""
    from elastic_etcd.parameters import parse_endpoints

    return [(member.host, member.port) for member in parse_endpoints(settings.rdzv_endpoint)]


@hookimpl
def elastic_rendezvous_backends() -> list[RendezvousBackendRecord]:
    return [
        RendezvousBackendRecord(
            "etcd",
            "nodes meet at an etcd cluster, which survives the loss of one machine",
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
                Option("endpoint", str, "127.0.0.1:2379", "host:port of the members, separated by commas"),
                *CONNECTION,
                Option("timeout", float, 300.0, "how long to wait for a key to be set", "seconds", above=0),
            ),
        )
    ]
