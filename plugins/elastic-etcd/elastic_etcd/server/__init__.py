"""Starts etcd servers for a single node, for tests, and as members of a cluster that the agents of a job serve."""

from elastic_etcd.server.server import EtcdServer, EtcdServerError

__all__ = ["EtcdServer", "EtcdServerError"]
