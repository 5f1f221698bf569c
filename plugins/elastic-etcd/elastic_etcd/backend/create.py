"""From parameters to a backend and what belongs to it."""

from __future__ import annotations

import contextlib
import math
import sys
import zlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from elastic_core.plugin import (
    ConfigurationError,
    LateStore,
    MadeStores,
    Problem,
    RendezvousConnectionError,
    RendezvousError,
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
    from collections.abc import Callable

    from elastic_core.plugin import Duration, RendezvousParameters, RoundHandler, Store
    from elastic_etcd.server import EtcdServer
    from elastic_etcd.server.member import ServedCluster

CALL: Duration = 5.0  # seconds for one operation, with all its attempts on all members
_STORE_TTL: Duration = 24 * 3600.0  # longer than members need to find each other when a round begins


def create_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, Store]:
    """A backend, which connects when it is first used, and a store in which the rounds' members can keep what they have
    in common; what is in it goes after a day.

    Options of `params`: see the record of `etcd` in `elastic_etcd.plugin`; those not given have their defaults.

    Raises:
        ConfigurationError: the endpoint or an option cannot be.
        RendezvousError: etcd cannot be reached, or refuses.
    """
    parameters = read_parameters(params.endpoint, params.config)
    return _backend(params, parameters), _lasting_store(params, parameters)


def handler_for(params: RendezvousParameters) -> RoundHandler:
    """A handler of dynamic rounds. On one node without an endpoint it starts an etcd of its own, which ends with it.

    Raises:
        ConfigurationError: the endpoint or an option cannot be.
    """
    server, served = None, None
    with contextlib.ExitStack() as undo:
        if not params.endpoint and params.max_nodes == 1:
            from elastic_etcd.server import EtcdServer

            server = EtcdServer()
            server.start()
            undo.callback(server.stop)
            parameters = read_parameters(server.get_endpoint(), params.config)
        else:
            parameters = read_parameters(params.endpoint, params.config)
            if options_of(params, SERVING)["serve"]:
                served = served_cluster(params, parameters)
                served.start()
                undo.callback(served.stop)
        # An error must arrive before the join gives up on a first answer; later, its reason would not be reported.
        backend = _backend(params, parameters, 0.5, server, served)
        keys = Keys(parameters.prefix, params.run_id)
        address = partial(advertised_address, params, parameters.places)
        stores = MadeStores(partial(_round_store, parameters, keys), address)
        handler = create_handler(None, backend, params, stores, params.backend)
        undo.pop_all()
    return handler


def open_backend(params: RendezvousParameters) -> EtcdRendezvousBackend:
    """The backend of a job for who looks at it from outside, and serves nothing."""
    parameters = read_parameters(params.endpoint, params.config)
    serves = options_of(params, SERVING)["serve"]
    return _backend(params, parameters, served=served_cluster(params, parameters) if serves else None)


def client_for(parameters: EtcdParameters, longest: Duration = math.inf, node: str = "") -> EtcdClient:
    """A client whose calls take `longest` seconds at most. The name of a `node` chooses which member it asks first, so
    that a thousand of them do not all lean on one."""
    timeout = min(parameters.read_timeout, longest)
    addresses = parameters.addresses
    first = zlib.crc32(node.encode()) % len(addresses)
    turned = addresses[first:] + addresses[:first]
    return EtcdClient(turned, parameters.security, parameters.login, timeout=timeout)


def served_cluster(params: RendezvousParameters, parameters: EtcdParameters) -> ServedCluster:
    """The cluster that the agents serve at the endpoints. Raises ConfigurationError."""
    from elastic_etcd.server.cluster import Cluster, Place
    from elastic_etcd.server.member import ServedCluster, files_of

    options, tls = options_of(params, SERVING), parameters.security
    problems, hosts = [], len(parameters.endpoints)
    if hosts % 2 == 0:
        told = f"expected an odd number of hosts with serve=true, found {hosts}: the last adds no fault tolerance"
        problems.append(Problem("--rdzv-endpoint", f"{told}; add one, or leave one out"))
    if parameters.login is not None:
        told = "expected no user, since the cluster that agents serve has none, found one; leave it out"
        problems.append(Problem("--rdzv-conf: user", told))
    if problems:
        raise ConfigurationError(*problems)
    scheme, peer_port = "https" if tls else "http", options["serve_peer_port"]
    places = tuple(Place(it.host, it.port, peer_port or it.port + 1, scheme) for it in parameters.endpoints)
    files = files_of(tls.ca_cert, tls.cert, tls.key) if tls else None
    return ServedCluster(Cluster(params.run_id, places), files, params.local_addr, options["serve_folder"])


def _backend(
    params: RendezvousParameters,
    parameters: EtcdParameters,
    share: float = 1.0,
    server: EtcdServer | None = None,
    served: ServedCluster | None = None,
) -> EtcdRendezvousBackend:
    """`share`: how much of the time for a first answer a call may take at most."""
    options = options_of(params, ETCD)
    longest = share * min(options["join_timeout"], options["connect_timeout"])
    node = params.node.name if params.node else ""
    if served is not None and served.own is not None:  # our member first: it goes when we do
        own, node = served.own.address, ""
        nearest = sorted(parameters.endpoints, key=lambda endpoint: endpoint.address != own)
        parameters = replace(parameters, endpoints=tuple(nearest))
    return EtcdRendezvousBackend(
        client_for(parameters, min(longest, CALL), node),
        params.run_id,
        parameters.prefix,
        _lease_ttl(params, parameters),
        server=server,
        grace=options["outage_grace"],
        served=served,
    )


def _lease_ttl(params: RendezvousParameters, parameters: EtcdParameters) -> Duration:
    """As long as beats may be missing, unless it was chosen. Raises ConfigurationError if beats came too late."""
    settings = settings_of(params)
    if parameters.lease_ttl is None:
        return max(SHORTEST_TTL, settings.failure_timeout)
    least = 2 * settings.keep_alive_interval
    if parameters.lease_ttl < least:
        told = f"expected at least two beats ({least:g} s) in the life of a lease, found {parameters.lease_ttl:g} s"
        raise ConfigurationError(Problem("--rdzv-conf: lease_ttl", told))
    return parameters.lease_ttl


def _round_store(parameters: EtcdParameters, keys: Keys, name: str) -> Store:
    """What the members of the round with this name share: an `EtcdStore`, whose keys go with the state of the job, or
    when one of a later round is written to.

    To import torch takes a second or two, which agents do not spend on a store that hardly any of them uses. So it is
    a torch store where torch is imported already: no program can pass it to torch otherwise. Elsewhere it has the same
    methods, and imports torch when it is first used.
    """

    def lease(client: EtcdClient) -> int:
        """That of the job's state. On the way, what earlier rounds left goes."""
        earlier = Delete(keys.store.encode(), keys.earlier_rounds(name).encode())
        found = client.transact(Transaction((), (Get(keys.state), earlier))).ranges[0].first
        if found is None or not found.lease:
            raise EtcdUnreachable(f"expected the state of a job under the key {keys.state.decode()!r}, found none")
        return found.lease

    def make() -> Store:
        return _store(client_for(parameters), keys.round_store(name), lease)

    return make() if sys.modules.get("torch") else cast("Store", LateStore(make))


def _lasting_store(params: RendezvousParameters, parameters: EtcdParameters) -> Store:
    client, keys = client_for(parameters), Keys(parameters.prefix, params.run_id)
    with contextlib.ExitStack() as undo:
        undo.callback(client.close)
        try:
            client.read(keys.state)
        except EtcdUnreachable as error:
            raise RendezvousConnectionError(f"making a store in etcd: {error}") from error
        except EtcdError as error:
            raise RendezvousError(f"making a store in etcd: {error}") from error
        # Keys expire a day after the first write. Without a write there is no lease.
        store = _store(client, keys.store, lambda client: client.grant(_STORE_TTL).id)
        undo.pop_all()
    return store


def _store(client: EtcdClient, prefix: str, lease: Callable[[EtcdClient], int]) -> Store:
    """A store that closes the client."""
    from elastic_etcd.store import EtcdStore

    store: Store = EtcdStore(client, prefix, lease=partial(lease, client), owns_client=True)
    return store
