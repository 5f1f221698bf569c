"""Measure single operations of a store in etcd and the plain calls below them: `etcd_latency.py PORT COUNT`.

Prints the median of each in seconds, as JSON. They alternate, so that a change in the machine's load affects both.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import uuid
from collections.abc import Callable

import grpc
from elastic_etcd import EtcdStore
from elastic_etcd.client.client import EtcdClient
from elastic_etcd.client.messages import Method, rpc

WARM_UP = 50


def plain_calls(port: int, key: bytes) -> dict[str, Callable[[int], object]]:
    """For each operation, the single etcd call that it needs at least."""
    calls = rpc()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    written = type(calls.txn.request().success.add().request_put)
    answered = type(calls.txn.parse(b"").responses.add().response_put)
    put = Method("/etcdserverpb.KV/Put", written, answered.FromString)
    read, write, decide = (method.on(channel) for method in (calls.range, put, calls.txn))

    def swap(number: int) -> object:
        request = calls.txn.request()
        condition = request.compare.add()
        condition.target, condition.key, condition.create_revision = 1, key, number  # never true
        for operations in (request.success, request.failure):
            change = operations.add().request_put
            change.key, change.value = key, b"value"
        return decide(request.SerializeToString())

    return {
        "get": lambda _: read(calls.range.filled(key=key)),
        "set": lambda _: write(put.filled(key=key, value=b"value")),
        "add": swap,
        "compare_set": swap,
    }


def store_calls(store: EtcdStore) -> dict[str, Callable[[int], object]]:
    """The store's operations."""
    store.set("key", "value")
    store.set("swapped", "0")
    return {
        "get": lambda _: store.get("key"),
        "set": lambda _: store.set("key", "value"),
        "add": lambda _: store.add("counter", 1),
        "compare_set": lambda number: store.compare_set("swapped", str(number), str(number + 1)),
    }


def seconds(call: Callable[[int], object], number: int) -> float:
    """Duration of one call."""
    begun = time.perf_counter()
    call(number)
    return time.perf_counter() - begun


def main() -> None:
    port, count = int(sys.argv[1]), int(sys.argv[2])
    prefix = f"/benchmark-{uuid.uuid4().hex}/"
    ours = store_calls(EtcdStore(EtcdClient([f"127.0.0.1:{port}"]), prefix))
    plain = plain_calls(port, prefix.encode() + b"plain")
    medians = {}
    for name in ours:
        taken = [(seconds(ours[name], number), seconds(plain[name], number)) for number in range(WARM_UP + count)]
        kept = taken[WARM_UP:]
        medians[name] = [statistics.median(pair[0] for pair in kept), statistics.median(pair[1] for pair in kept)]
    print(json.dumps(medians), flush=True)


if __name__ == "__main__":
    main()
