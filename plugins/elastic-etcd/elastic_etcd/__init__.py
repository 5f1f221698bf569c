"""Rendezvous over etcd's v3 API. grpc, etcd3 and torch are imported only when they are used."""

from typing import TYPE_CHECKING

from elastic_core.plugin import lazy_names

if TYPE_CHECKING:
    from elastic_etcd.backend.backend import EtcdRendezvousBackend
    from elastic_etcd.backend.create import create_backend
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.server import EtcdServer
    from elastic_etcd.store.torch_store import EtcdStore

__all__ = ["EtcdClient", "EtcdRendezvousBackend", "EtcdServer", "EtcdStore", "create_backend"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__)
