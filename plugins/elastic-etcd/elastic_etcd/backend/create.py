"""Creates a backend and everything it needs from parameters."""

from __future__ import annotations

import contextlib
import math
import sys
import zlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, cast

from elastic_core.plugin import (
    ConfigurationError,
    MadeStores,
    Problem,
    RendezvousConnectionError,
    RendezvousError,
    StoreOnFirstUse,
    advertised_address,
    create_handler,
    options_of,
    settings_of,
)
from elastic_etcd.backend.backend import EtcdRendezvousBackend
from elastic_etcd.backend.keys import Keys
from elastic_etcd.client.client import EtcdClient
from elastic_etcd.client.errors import EtcdError, EtcdUnreachable
from elastic_etcd.client.values import Delete, Get, Transaction
from elastic_etcd.parameters import SHORTEST_TTL, EtcdParameters, read_parameters
from elastic_etcd.plugin import ETCD, SERVING

if TYPE_CHECKING:
    from elastic_core.plugin import Duration, RendezvousParameters, RoundHandler, Store
    from elastic_etcd.server import EtcdServer
    from elastic_etcd.server.member import ServedCluster

_LAST_PORT = 65535
_STORE_TTL: Duration = 24 * 3600.0  # longer than the members of a new round need to find each other


def create_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, Store]:
    """Create a backend, which connects on first use, and a store that the members of a round can share. The store's
    keys expire after a day. The record `etcd` in `elastic_etcd.plugin` lists the options. Raises ConfigurationError for
    an invalid endpoint or option, and RendezvousError if etcd is unreachable or refuses the request."""
    parameters = read_parameters(params.endpoint, params.config)
    return _backend(params, parameters), _lasting_store(params, parameters)


def handler_for(params: RendezvousParameters) -> RoundHandler:
    """Create a handler for dynamic rounds. On a single node without an endpoint, it starts an etcd server, which stops
    with the handler. Raises ConfigurationError for an invalid endpoint or option."""
    endpoint, server, served = params.endpoint, None, None
    with contextlib.ExitStack() as undo:
        if not endpoint and params.max_nodes == 1:
            from elastic_etcd.server import EtcdServer

            server = EtcdServer()
            server.start()
            undo.callback(server.stop)
            endpoint = server.get_endpoint()
        parameters = read_parameters(endpoint, params.config)
        if server is None and options_of(params, SERVING)["serve"]:
            served = served_cluster(params, parameters)
            served.start()
            undo.callback(served.stop)
        # A call must fail before the join stops waiting for a first answer. Otherwise, the reason for the failure would
        # not be reported.
        backend = _backend(params, parameters, 0.5, server, served)
        keys = Keys(parameters.prefix, params.run_id)
        stores = MadeStores(partial(_round_store, parameters, keys), partial(advertised_address, params))
        handler = create_handler(None, backend, params, stores, params.backend)
        undo.pop_all()
    return handler


def open_backend(params: RendezvousParameters) -> EtcdRendezvousBackend:
    """Open a job's backend for a command such as `elastic status`, which serves no member."""
    parameters = read_parameters(params.endpoint, params.config)
    serves = options_of(params, SERVING)["serve"]
    return _backend(params, parameters, served=served_cluster(params, parameters) if serves else None)


def client_for(parameters: EtcdParameters, longest: Duration = math.inf, first: int = 0) -> EtcdClient:
    """Create a client whose calls take at most `longest` seconds. It begins with the member number `first`."""
    timeout = min(parameters.read_timeout, longest)
    turned = parameters.addresses[first:] + parameters.addresses[:first]
    return EtcdClient(turned, parameters.security, parameters.login, timeout=timeout)


def served_cluster(params: RendezvousParameters, parameters: EtcdParameters) -> ServedCluster:
    """Return the cluster that the agents serve at the endpoints. Raises ConfigurationError for bad parameters."""
    from elastic_etcd.server.cluster import Cluster, Place
    from elastic_etcd.server.member import ServedCluster

    options, tls = options_of(params, SERVING), parameters.security
    problems, hosts = [], len(parameters.endpoints)
    if hosts % 2 == 0:
        reason = f"expected an odd number of hosts with serve=true, found {hosts}: the last one adds no fault tolerance"
        problems.append(Problem("--rdzv-endpoint", f"{reason}; add or remove a host"))
    if parameters.login is not None:
        problems.append(
            Problem("--rdzv-conf: user", "an etcd cluster run by the agents has no user accounts; remove the option")
        )
    if tls is not None and not (tls.ca_cert and tls.cert and tls.key):
        message = "serving over https requires ca_cert, ssl_cert and ssl_cert_key; set all, or use http"
        problems.append(Problem("--rdzv-conf: serve", message))
    scheme, peer_port = "https" if tls else "http", options["serve_peer_port"]
    places = tuple(Place(it.host, it.port, peer_port or it.port + 1, scheme) for it in parameters.endpoints)
    taken = Counter((place.host, port) for place in places for port in (place.port, place.peer_port))
    if clashing := [f"{host}:{port}" for (host, port), uses in taken.items() if uses > 1 or port > _LAST_PORT]:
        reason = f"two servers would listen at {', '.join(clashing)}, or the port does not exist"
        problems.append(Problem("--rdzv-conf: serve_peer_port", f"{reason}; use other ports"))
    if problems:
        raise ConfigurationError(*problems)
    if tls is not None:
        tls.check()
    return ServedCluster(Cluster(params.run_id, places), tls, params.local_addr, options["serve_folder"])


def _backend(
    params: RendezvousParameters,
    parameters: EtcdParameters,
    share: float = 1.0,
    server: EtcdServer | None = None,
    served: ServedCluster | None = None,
) -> EtcdRendezvousBackend:
    """Create the backend. One call may take at most the fraction `share` of the time allowed for a first answer."""
    options = options_of(params, ETCD)
    longest = share * min(options["join_timeout"], options["connect_timeout"])
    if served is not None and served.own is not None:  # prefer our own member, which ends when we do
        first = parameters.addresses.index(served.own.address)
    else:  # spread the nodes of a large job over all members
        node = params.node.name if params.node else ""
        first = zlib.crc32(node.encode()) % len(parameters.addresses)
    return EtcdRendezvousBackend(
        client_for(parameters, longest, first),
        params.run_id,
        parameters.prefix,
        _lease_ttl(params, parameters),
        server=server,
        grace=options["outage_grace"],
        served=served,
    )


def _lease_ttl(params: RendezvousParameters, parameters: EtcdParameters) -> Duration:
    """Return the configured TTL or, if it is not set, the time that may pass without heartbeats. Raises
    ConfigurationError if the configured TTL is too short."""
    settings = settings_of(params)
    if parameters.lease_ttl is None:
        return max(SHORTEST_TTL, settings.failure_timeout)
    least = 2 * settings.keep_alive_interval
    if parameters.lease_ttl < least:
        reason = f"expected at least two heartbeat intervals ({least:g} s), found {parameters.lease_ttl:g} s"
        raise ConfigurationError(Problem("--rdzv-conf: lease_ttl", reason))
    return parameters.lease_ttl


def _round_store(parameters: EtcdParameters, keys: Keys, name: str) -> Store:
    """Return the store that the members of the named round share. Its keys disappear with the job's state, or when a
    later round's store is first written to.

    If torch is not imported yet, the result is not a torch store, because importing torch takes a second or two and 200
    MiB of memory. The client connects on first use, because hardly any agent uses the store.
    """

    def lease(client: EtcdClient) -> int:
        earlier = Delete(keys.store.encode(), keys.earlier_rounds(name).encode())
        found = client.transact(Transaction((), (Get(keys.state), earlier))).ranges[0].first
        if found is None or not found.lease:
            raise EtcdUnreachable(f"the job has no state under the key {keys.state.decode()!r}")
        return found.lease

    def make() -> Store:
        from elastic_etcd.store.store import KeyStore

        kind = KeyStore
        if sys.modules.get("torch"):
            from elastic_etcd.store.torch_store import EtcdStore

            kind = EtcdStore
        client = client_for(parameters)
        return kind(client, keys.round_store(name), lease=partial(lease, client), owns_client=True)

    return make() if sys.modules.get("torch") else cast("Store", StoreOnFirstUse(make))


def _lasting_store(params: RendezvousParameters, parameters: EtcdParameters) -> Store:
    from elastic_etcd.store.torch_store import EtcdStore

    client, keys = client_for(parameters), Keys(parameters.prefix, params.run_id)
    try:
        client.read(keys.state)
    except EtcdError as error:
        client.close()
        kind = RendezvousConnectionError if isinstance(error, EtcdUnreachable) else RendezvousError
        raise kind(f"could not create a store in etcd: {error}") from error
    # Keys expire a day after the first write, which creates the lease.
    store: Store = EtcdStore(client, keys.store, lease=lambda: client.grant(_STORE_TTL).id, owns_client=True)
    return store
