"""What the plugin registers. Importing this imports neither torch nor grpc nor etcd3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.plugin import Option, RendezvousBackendRecord, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.plugin import Context, RendezvousHandler, RendezvousParameters, Settings

PROTOCOL = (
    Option(
        "timeout",
        float,
        600.0,
        "for this node to be in a round, the time that another round runs included",
        "seconds",
        above=0,
    ),
    Option(
        "last_call_timeout", float, 30.0, "for more nodes to join once the least number is there", "seconds", least=0
    ),
    Option("etcd_prefix", str, "/torchelastic/p2p", "what all keys begin with"),
)
_CLUSTER = (
    Option("protocol", str, None, "http or https; unset: what the endpoints or the certificates ask for"),
    Option("cacert", str, None, "path of the authorities that servers must be certified by (PEM)"),
    Option("cert", str, None, "path of a certificate for this client (PEM)"),
    Option("key", str, None, "path of its private key (PEM)"),
    Option("user", str, None, "user of etcd"),
    Option("password", str, None, "its password; better in a variable, which no list of processes shows", secret=True),
    Option("password_file", str, None, "a file that holds the password, which no other user can read"),
    Option("password_env", str, None, "the variable that holds the password; unset: ELASTIC_ETCD_PASSWORD"),
    Option("insecure_password", bool, False, "send the password in plain text, which everybody on the way can read"),
)


def _handler(context: Context, params: RendezvousParameters) -> RendezvousHandler:
    from elastic_etcd.plugin import look_for_libraries

    from elastic_etcd_legacy.create import create_rdzv_handler

    look_for_libraries()
    return create_rdzv_handler(params)


def _hosts_of(settings: Settings) -> Sequence[tuple[str, int]]:
    from elastic_etcd.plugin import hosts_of

    return hosts_of(settings)


@hookimpl
def elastic_rendezvous_backends() -> list[RendezvousBackendRecord]:
    return [
        RendezvousBackendRecord(
            "etcd-legacy",
            "the older protocol over etcd; deprecated, the better backend is etcd",
            _handler,
            (*PROTOCOL, *_CLUSTER),
            forkable=False,
            hosts_of=_hosts_of,
        )
    ]
