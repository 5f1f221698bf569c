"""The client over gRPC."""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
from typing import TYPE_CHECKING

from elastic_etcd.client import convert
from elastic_etcd.client.calls import Calls
from elastic_etcd.client.errors import EtcdLeaseExists, EtcdLeaseGone
from elastic_etcd.client.limits import check
from elastic_etcd.client.members import Members
from elastic_etcd.client.messages import rpc
from elastic_etcd.client.values import Get, Lease, Order, only_reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.clock import Clock, Duration
    from elastic_etcd.client.interface import Watch
    from elastic_etcd.client.login import Login
    from elastic_etcd.client.messages import Method
    from elastic_etcd.client.security import Security
    from elastic_etcd.client.values import Committed, Range, Transaction


class EtcdClient:
    """Implements `interface.Client`. Nothing is connected before the first call.

    Args:
        endpoints: `host:port` of one member or more, IPv6 in brackets. The first that works is used, the next when it
            does not any more.
        security: connections are over TLS, with these certificates; None: in plain text.
        login: user and password; None: without.
        timeout: of a call with all its attempts, in seconds.
        attempt: of one attempt on one member, in seconds.

    Raises:
        PluginError: the package etcd3 is missing or of another version.
        ConfigurationError: certificates cannot be used; every call raises it.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        security: Security | None = None,
        login: Login | None = None,
        timeout: Duration = 5.0,
        attempt: Duration = 1.0,
        clock: Clock | None = None,
    ) -> None:
        self._members = Members(endpoints, security, login)
        self._calls = Calls(self._members, timeout, attempt, clock)

    @property
    def where(self) -> str:
        """The endpoints, for messages."""
        return self._members.where

    @property
    def members(self) -> Members:
        """The members, for calls that this class has not."""
        return self._members

    def read(self, key: bytes, end: bytes = b"", keys_only: bool = False) -> Range:
        """See `Client`."""
        request = convert.range_request(Get(key, end, Order.CREATED, keys_only))
        return convert.range_of(self._calls.ask(rpc().range, request))

    def transact(self, transaction: Transaction) -> Committed:
        """See `Client`. Raises ValueError, too: it is more than etcd takes at once."""
        request = convert.txn_request(transaction).SerializeToString()
        check(transaction, len(request))
        repeatable = only_reads(transaction.then) and only_reads(transaction.otherwise)
        return convert.committed(self._calls.ask(_transaction(), request, repeatable), transaction)

    def grant(self, ttl: Duration) -> Lease:
        """See `Client`. It is repeated freely: the id is ours, so that a lease whose grant was not answered is found
        again, and none is left over."""
        lease = 1 + secrets.randbelow(2**62)
        try:
            answer = self._calls.ask(rpc().lease_grant, rpc().LeaseGrantRequest(ID=lease, TTL=math.ceil(ttl)))
        except EtcdLeaseExists:
            return Lease(lease, self.renew(lease))
        return Lease(answer.ID, float(answer.TTL))

    def revoke(self, lease: int) -> None:
        """See `Client`."""
        try:
            self._calls.ask(rpc().lease_revoke, rpc().LeaseRevokeRequest(ID=lease))
        except EtcdLeaseGone:
            pass  # perhaps by an earlier attempt

    def renew(self, lease: int) -> Duration:
        """See `Client`."""
        answer = self._calls.ask(_renewal(), rpc().LeaseKeepAliveRequest(ID=lease))
        if answer.TTL <= 0:
            raise EtcdLeaseGone(
                f"expected lease {lease:x} to live at etcd {self.where}, found none: it expired or was revoked; "
                "take a new one"
            )
        return float(answer.TTL)

    def watch(self, key: bytes, end: bytes = b"", after: int = 0) -> Watch:
        """See `Client`."""
        from elastic_etcd.client.watch import EtcdWatch

        return EtcdWatch(self._members, key, end, after, self._calls.timeout)

    def close(self) -> None:
        """See `Client`."""
        self._members.close()


@functools.cache
def _transaction() -> Method:
    """Takes what is serialized already: it was, to see how large it is."""
    return dataclasses.replace(rpc().txn, serialize=bytes)


@functools.cache
def _renewal() -> Method:
    """A stream of one request and its one answer is, to the server, the same as one call: without a thread for it."""
    return dataclasses.replace(rpc().lease_keep_alive, sends_stream=False, answers_stream=False)
