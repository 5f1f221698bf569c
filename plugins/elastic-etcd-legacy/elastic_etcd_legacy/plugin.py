"""Registers the backend. Importing this module does not import torch, grpc or etcd3."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_etcd.plugin import CONNECTION, hosts_of, look_for_libraries

from elastic_core.plugin import Option, RendezvousBackendRecord, hookimpl

if TYPE_CHECKING:
    from elastic_core.plugin import Context, RendezvousHandler, RendezvousParameters

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
CLUSTER = tuple(option for option in CONNECTION if option.name not in ("read_timeout", "prefix"))
NAMES = {"ca_cert": "cacert", "ssl_cert": "cert", "ssl_cert_key": "key"}
"""Names of options: elastic-etcd's -> this backend's."""


def _handler(context: Context, params: RendezvousParameters) -> RendezvousHandler:
    from elastic_etcd_legacy.create import create_rdzv_handler

    look_for_libraries()
    return create_rdzv_handler(params)


@hookimpl
def elastic_rendezvous_backends() -> list[RendezvousBackendRecord]:
    return [
        RendezvousBackendRecord(
            "etcd-legacy",
            "the older protocol over etcd; deprecated, use the backend etcd instead",
            _handler,
            (*PROTOCOL, *(replace(option, name=NAMES.get(option.name, option.name)) for option in CLUSTER)),
            forkable=False,
            hosts_of=hosts_of,
        )
    ]
