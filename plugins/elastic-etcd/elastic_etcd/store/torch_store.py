"""The store in etcd as a torch store. Importing this imports torch."""

from __future__ import annotations

from typing import Any

from elastic_core.plugin import import_with
from elastic_etcd.client.errors import EtcdError, EtcdUnreachable
from elastic_etcd.store.store import KeyStore

_dist: Any = import_with("torch.distributed", "TORCH_CPP_LOG_LEVEL", "FATAL")  # suppresses C++ traces


class _ErrorsOfTorch:
    """Converts errors into torch's. One instance serves all operations, because entering a generator would be slow."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, EtcdUnreachable):
            raise _dist.DistNetworkError(str(error)) from error
        if isinstance(error, EtcdError):
            raise _dist.DistStoreError(str(error)) from error


class EtcdStore(KeyStore, _dist.Store):  # type: ignore[misc]
    """A store like torch's TCPStore, whose keys survive the loss of any one machine. Thread-safe. Every write counts
    once, even if its answer is lost. While no member of the cluster answers, operations try again until the store's
    timeout. Where torch's own stores differ, this one behaves like TCPStore, except that `add` to a value that is not a
    number raises ValueError, and an empty value is treated as 0.

    Errors are torch's, and their cause is the client's error: DistStoreError if keys do not appear in time ("wait
    timeout after ...") or etcd rejects a request, and DistNetworkError if no member answers. ValueError means that keys
    and values exceed etcd's limit for a request (1.5 MiB).

    Args:
        etcd_client: a client created in this process, not inherited through a fork.
        etcd_store_prefix: prefix of all keys (slashes at its ends are ignored). Below it, `k/` holds users' keys and
            `w/` write markers. Stores with the same prefix share their keys, which stay until they are deleted or the
            lease ends.
        timeout: how long to wait for keys to appear and for etcd to answer (default: 300 s). `set_timeout` changes it.
        lease: the lease of all keys, or a function that returns it, called at the first write (0: no lease). The caller
            renews it.
        owns_client: whether `close` also closes the client.
    """

    _errors = _ErrorsOfTorch()
    timeout = _dist.Store.timeout
    set_timeout = _dist.Store.set_timeout
