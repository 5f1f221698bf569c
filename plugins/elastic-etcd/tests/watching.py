"""What tests of watches share."""

import time

from elastic_etcd.client.errors import EtcdUnreachable
from elastic_etcd.client.values import Put, Transaction

LONG = 60.0


def put(client, key, value=b"x"):
    return client.transact(Transaction((), (Put(key, value),))).revision


def keep_putting(client, key, values, pause=0.05):
    """Write the values, each until it was taken; a watch tells each of them at least once."""
    for value in values:
        while True:
            try:
                put(client, key, value)
                break
            except EtcdUnreachable:
                pass
        time.sleep(pause)


def gather(watch, wanted, timeout=LONG):
    """The events of a watch until there was one of this value."""
    events, deadline = [], time.monotonic() + timeout
    while not events or events[-1].pair.value != wanted:
        assert time.monotonic() < deadline, f"{len(events)} events, none of them {wanted}"
        try:
            news = watch.next(1.0)
        except EtcdUnreachable:
            continue
        assert news is None or not news.resync
        events += news.events if news else ()
    return events


def patiently(watch):
    try:
        return watch.next(1.0)
    except EtcdUnreachable:
        return None
