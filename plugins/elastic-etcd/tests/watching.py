"""Helpers for tests that watch keys."""

import time

from elastic_etcd.client.errors import EtcdUnreachable
from elastic_etcd.client.reflector import Reflector
from elastic_etcd.client.values import Put, Transaction

LONG = 60.0


class Followed(Reflector):
    """Records current keys, all events, and all lists."""

    def __init__(self, client, key, end=b"", revision=0):
        super().__init__(client, key, end, revision=revision)
        self.pairs, self.events, self.lists = {}, [], []

    def _replace(self, found):
        self.lists.append(found)
        self.pairs = {pair.key: pair.value for pair in found.values}

    def _apply(self, pair, deleted):
        self.events.append((pair, deleted))
        self.pairs.pop(pair.key, None)
        if not deleted:
            self.pairs[pair.key] = pair.value

    @property
    def values(self):
        """The values of all events."""
        return [pair.value for pair, _ in self.events]

    def established(self):
        """Wait until the watch is established."""
        self.until(lambda: self.follows)
        return self

    def until(self, is_so, timeout=LONG):
        """Wait until the condition holds, through any outage of etcd."""
        deadline = time.monotonic() + timeout
        while not is_so():
            assert time.monotonic() < deadline, f"{len(self.events)} events, {len(self.lists)} lists: {self.pairs}"
            try:
                self.wait_for(is_so, 1.0)
            except EtcdUnreachable:
                pass


def put(client, key, value=b"x"):
    return client.transact(Transaction((), (Put(key, value),))).revision


def keep_putting(client, key, values, pause=0.05):
    """Write the values in order, each until it succeeds."""
    for value in values:
        while True:
            try:
                put(client, key, value)
                break
            except EtcdUnreachable:
                pass
        time.sleep(pause)
