"""The backend `etcd`: the state is one key, entries are keys with leases, and watches push changes."""

from elastic_etcd.backend.backend import EtcdRendezvousBackend

__all__ = ["EtcdRendezvousBackend"]
