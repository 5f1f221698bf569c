"""An etcd of our own: for jobs on one node, for tests, and a member each on the machines of a job."""

from elastic_etcd.server.server import EtcdServer, EtcdServerError

__all__ = ["EtcdServer", "EtcdServerError"]
