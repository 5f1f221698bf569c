"""Creates a handler from parameters, reports all their problems together, and warns that the backend is deprecated."""

from __future__ import annotations

import re
import socket
import threading
import warnings
from typing import TYPE_CHECKING

from elastic_etcd.parameters import read_parameters

from elastic_core.plugin import ConfigurationError, Problem, advertised_address, get_logger, options_of
from elastic_etcd_legacy.handler import EtcdRendezvousHandler
from elastic_etcd_legacy.plugin import CLUSTER, NAMES, PROTOCOL
from elastic_etcd_legacy.settings import DEFAULT_PREFIX, LegacySettings

if TYPE_CHECKING:
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.parameters import EtcdParameters

    from elastic_core.plugin import RendezvousParameters, Store

ADVICE = (
    "only the backend's name changes; the backend etcd re-forms the job immediately after a failure, pushes changes to "
    "the members, and scales better, because its cost does not grow with the square of the number of nodes"
)
_warned = threading.Event()


def create_rdzv_handler(params: RendezvousParameters) -> EtcdRendezvousHandler:
    """Create a handler for these parameters, without connecting. Emits a DeprecationWarning that recommends `etcd`.

    Options in `params`, all optional, are `timeout` (600 s), `last_call_timeout` (30 s), `etcd_prefix`
    (/torchelastic/p2p), `protocol` (http, https), `cacert`, `cert`, `key` (paths of PEM files), `user`, `password`,
    `password_file`, `password_env` and `insecure_password`.

    Raises:
        ConfigurationError: the endpoint or an option is invalid.
    """
    settings, cluster = read(params)
    _warn_deprecated()
    from elastic_etcd.client.client import EtcdClient

    client = EtcdClient(cluster.addresses, cluster.security, cluster.login)
    name = params.node.name if params.node else socket.gethostname()
    return EtcdRendezvousHandler(client, settings, advertised_address(params), _store, name, backend=params.backend)


def _warn_deprecated() -> None:
    """Emit a DeprecationWarning for developers and, once per process, log an event for users."""
    message = f"the rendezvous backend etcd-legacy is in maintenance mode; use etcd: {ADVICE}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    if not _warned.is_set():
        _warned.set()
        get_logger(backend="etcd-legacy", better="etcd").warning("backend deprecated", advice=ADVICE)


def read(params: RendezvousParameters) -> tuple[LegacySettings, EtcdParameters]:
    """Read the settings from the parameters. Raises ConfigurationError, which lists all problems."""
    problems: list[Problem] = []
    cluster: EtcdParameters | None = None
    settings: LegacySettings | None = None
    try:
        cluster = _cluster(params)
    except ConfigurationError as error:
        problems += [_renamed(problem) for problem in error.problems]
    try:
        settings = _settings(params)
    except ConfigurationError as error:
        problems += error.problems
    except ValueError as error:
        problems.append(Problem("--rdzv-conf", str(error)))
    if problems or settings is None or cluster is None:
        raise ConfigurationError(*problems)
    return settings, cluster


def _cluster(params: RendezvousParameters) -> EtcdParameters:
    options = {option.name: params.get(NAMES.get(option.name, option.name)) for option in CLUSTER}
    return read_parameters(params.endpoint, options)


def _renamed(problem: Problem) -> Problem:
    def renamed(text: str) -> str:
        return re.sub(r"\b(ca_cert|ssl_cert_key|ssl_cert)\b", lambda found: NAMES[found[0]], text)

    return Problem(renamed(problem.origin), renamed(problem.message))


def _settings(params: RendezvousParameters) -> LegacySettings:
    options = options_of(params, PROTOCOL)
    return LegacySettings(
        params.run_id,
        params.min_nodes,
        params.max_nodes,
        options["timeout"],
        options["last_call_timeout"],
        options["etcd_prefix"] or DEFAULT_PREFIX,
    )


def _store(client: EtcdClient, prefix: str, lease: int) -> Store:
    from elastic_etcd.store.torch_store import EtcdStore

    store: Store = EtcdStore(client, prefix, lease=lease)
    return store
