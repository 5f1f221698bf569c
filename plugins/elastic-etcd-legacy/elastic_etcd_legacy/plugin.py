"""Registers the backend. Importing this module does not import torch, grpc or etcd3."""

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
        "how long this node waits to join a round, including the time during which it waits for another round to end",
        "seconds",
        above=0,
    ),
    Option(
        "last_call_timeout",
        float,
        30.0,
        "how long to wait for more nodes once the minimum has joined",
        "seconds",
        least=0,
    ),
    Option("etcd_prefix", str, "/torchelastic/p2p", "prefix of all keys"),
)
_CLUSTER = (
    Option(
        "protocol", str, None, "http or https; defaults to the endpoints' scheme, or to https if a certificate is set"
    ),
    Option(
        "cacert", str, None, "PEM file with the CAs that sign the servers' certificates; defaults to the system's CAs"
    ),
    Option("cert", str, None, "PEM file with this client's certificate"),
    Option("key", str, None, "PEM file with the certificate's private key"),
    Option("user", str, None, "name to log in with"),
    Option(
        "password",
        str,
        None,
        "the user's password; safer in an environment variable, which does not appear in the process list",
        secret=True,
    ),
    Option("password_file", str, None, "file with the password, which other users must not be able to read"),
    Option("password_env", str, None, "environment variable with the password; defaults to ELASTIC_ETCD_PASSWORD"),
    Option("insecure_password", bool, False, "allow the password to be sent unencrypted over the network"),
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
            "the older protocol over etcd; deprecated, use the backend etcd instead",
            _handler,
            (*PROTOCOL, *_CLUSTER),
            forkable=False,
            hosts_of=_hosts_of,
        )
    ]
