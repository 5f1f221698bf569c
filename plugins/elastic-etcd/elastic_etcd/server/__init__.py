"""An etcd of our own: for jobs on one node, and for tests."""

from elastic_etcd.server.server import EtcdServer, EtcdServerError

__all__ = ["EtcdServer", "EtcdServerError"]
