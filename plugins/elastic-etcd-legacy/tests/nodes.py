"""Nodes of a job for tests: each is a handler with its own client."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

from elastic_etcd.client.client import EtcdClient
from elastic_etcd_legacy.handler import EtcdRendezvousHandler
from elastic_etcd_legacy.settings import LegacySettings

from elastic_core.builtin import MemoryStore


class Job:
    """Makes nodes of one run; `close` shuts them down."""

    def __init__(self, endpoints, settings):
        self.endpoints = endpoints
        self.settings = settings
        self.stores = {}
        self.client_class = EtcdClient
        self.patience = 5.0
        self.clock = None
        self._made = []

    def node(self, **settings):
        """A handler; `settings` differ from those of the job."""
        chosen = replace(self.settings, **settings)
        client = self.client_class(self.endpoints, timeout=self.patience)
        made = EtcdRendezvousHandler(client, chosen, "127.0.0.1", self._store, f"node{len(self._made)}", self.clock)
        self._made.append(made)
        return made

    def client(self):
        return EtcdClient(self.endpoints, timeout=self.patience)

    def close(self):
        for node in self._made:
            node.shutdown()

    def _store(self, client, prefix, lease):
        return self.stores.setdefault(prefix, MemoryStore())


@contextmanager
def job_at(endpoints, run_id, least, most, **settings):
    """A job with a short last call, and timeouts that no slow node exceeds."""
    times = {"timeout": 60.0, "last_call": 0.3, "setup": 30.0, "confirm": 30.0, "keep_alive": 30.0} | settings
    job = Job(endpoints, LegacySettings(run_id, least, most, **times))
    try:
        yield job
    finally:
        job.close()
