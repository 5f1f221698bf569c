"""`EtcdStore`, a `torch.distributed.Store` in etcd. Importing this package imports torch."""

from elastic_etcd.store.store import EtcdStore

__all__ = ["EtcdStore"]
