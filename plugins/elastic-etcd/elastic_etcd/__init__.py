"""Rendezvous over etcd's v3 API. Nothing of grpc, etcd3 or torch is imported before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_etcd.backend import EtcdRendezvousBackend
    from elastic_etcd.backend.create import create_backend
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.server import EtcdServer
    from elastic_etcd.store import EtcdStore

_WHERE = {
    "EtcdClient": "elastic_etcd.client.client",
    "EtcdRendezvousBackend": "elastic_etcd.backend",
    "EtcdServer": "elastic_etcd.server",
    "EtcdStore": "elastic_etcd.store",
    "create_backend": "elastic_etcd.backend.create",
}

__all__ = ["EtcdClient", "EtcdRendezvousBackend", "EtcdServer", "EtcdStore", "create_backend"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)
