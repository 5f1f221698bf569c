"""The store in etcd as a torch store. Importing this imports torch."""

from __future__ import annotations

from typing import Any

from elastic_core.plugin import import_with
from elastic_etcd.client.errors import EtcdError, EtcdUnreachable
from elastic_etcd.store.store import KeyStore

_dist: Any = import_with("torch.distributed", "TORCH_CPP_LOG_LEVEL", "FATAL")  # suppresses C++ traces


class _ErrorsOfTorch:
    """Converts the client's errors into torch's. A generator-based context manager would be slow."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, EtcdUnreachable):
            raise _dist.DistNetworkError(str(error)) from error
        if isinstance(error, EtcdError):
            raise _dist.DistStoreError(str(error)) from error


class EtcdStore(KeyStore, _dist.Store):  # type: ignore[misc]
    """A store like torch's TCPStore, whose keys survive the loss of any one machine. Thread-safe. Every write takes
    effect exactly once, even if its answer is lost. While no member of the cluster answers, operations are retried
    until the store's timeout. If torch's own stores differ from each other, this one behaves like TCPStore, with two
    exceptions: `add` raises ValueError if the value is not a number, and treats an empty value as 0.

    The store raises torch's errors, whose `__cause__` is the client's error. DistStoreError means that keys did not
    appear in time ("wait timeout after ...") or that etcd rejected a request. DistNetworkError means that no member
    answered. ValueError means that keys and values exceed etcd's limit for a request (1.5 MiB).

    Args:
        etcd_client: a client created in this process, not inherited through a fork.
        etcd_store_prefix: prefix of all keys (slashes at its ends are ignored). Below the prefix, `k/` contains users'
            keys, and `w/` contains write markers. Stores with the same prefix share their keys, which stay until they
            are deleted or the lease ends.
        timeout: how long to wait for keys to appear and for etcd to answer (default: 300 s). `set_timeout` changes it.
        lease: the lease of all keys (0: no lease), or a function that returns the lease and is called at the first
            write. The caller renews the lease.
        owns_client: whether `close` also closes the client.
    """

    _errors = _ErrorsOfTorch()
    timeout = _dist.Store.timeout
    set_timeout = _dist.Store.set_timeout
