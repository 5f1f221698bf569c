"""The backend `etcd`: the state under one key, entries under keys with leases, changes told by watches."""

from elastic_etcd.backend.backend import EtcdRendezvousBackend

__all__ = ["EtcdRendezvousBackend"]
