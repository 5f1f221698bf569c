"""The client over gRPC: what the rest of this package asks of etcd."""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import SystemClock
from elastic_etcd.client import convert
from elastic_etcd.client.calls import Call
from elastic_etcd.client.errors import EtcdLeaseExists, EtcdLeaseGone
from elastic_etcd.client.login import Tokens
from elastic_etcd.client.members import Members
from elastic_etcd.client.messages import rpc
from elastic_etcd.client.values import Get, Lease

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.plugin import Clock, Duration
    from elastic_etcd.client.channel import Security
    from elastic_etcd.client.login import Login
    from elastic_etcd.client.messages import Method
    from elastic_etcd.client.values import Committed, Range, Transaction


class EtcdClient:
    """A client of one cluster. Nothing is connected before the first call. May be used from several threads at once.

    Every call raises EtcdUnreachable, EtcdClosed or EtcdRefused.

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
        self.members = Members(endpoints, security)
        self.tokens = Tokens(login)
        self.timeout = timeout
        self.attempt = attempt
        self.clock = clock or SystemClock()
        self.where = self.members.where

    def read(self, key: bytes, end: bytes = b"", keys_only: bool = False, limit: int = 0) -> Range:
        """A key, or with `end` all up to it, in the order of their creation; no more than the first `limit`, if that is
        not 0. Linearizable. Repeated on other members until `timeout`. Raises EtcdTooLarge, too."""
        request = convert.range_request(Get(key, end, keys_only, limit=limit))
        return convert.range_of(self._ask(rpc().range, request))

    def transact(self, transaction: Transaction) -> Committed:
        """Carry out a transaction. It is repeated on other members only if it cannot have landed before, or reads only;
        else EtcdUnreachable with `landed` tells that it may have, and the caller finds out by what is unique in it.

        Raises ValueError, too: it is more than etcd takes at once.
        """
        request = convert.txn_request(transaction)
        reads_only = {Get}.issuperset(map(type, (*transaction.then, *transaction.otherwise)))
        return convert.committed(self._ask(rpc().txn, request, reads_only), transaction)

    def grant(self, ttl: Duration) -> Lease:
        """A new lease, of at least 2 s. Repeated freely: the id is ours, so that one whose grant was not answered is
        found again, and none is left over."""
        lease = 1 + secrets.randbelow(2**62)
        method = rpc().lease_grant
        try:
            answer = self._ask(method, method.filled(ID=lease, TTL=math.ceil(ttl)))
        except EtcdLeaseExists:
            return Lease(lease, self.renew(lease))
        return Lease(answer.ID, float(answer.TTL))

    def revoke(self, lease: int) -> None:
        """End the lease, and with it its keys. Nothing happens if it is gone."""
        method = rpc().lease_revoke
        try:
            self._ask(method, method.filled(ID=lease))
        except EtcdLeaseGone:
            pass  # perhaps by an earlier attempt

    def renew(self, lease: int) -> Duration:
        """Renew a lease once. Returns its time to live. Raises EtcdLeaseGone."""
        method = rpc().lease_keep_alive
        answer = self._ask(method, method.filled(ID=lease))
        if answer.TTL <= 0:
            raise EtcdLeaseGone(
                f"expected lease {lease:x} to live at etcd {self.where}, found none: it expired or was revoked; "
                "take a new one"
            )
        return float(answer.TTL)

    def close(self) -> None:
        """Every blocked call comes back at once with EtcdClosed. Idempotent. Leases are left to expire."""
        self.members.close()

    def _ask(self, method: Method, request: bytes, repeatable: bool = True) -> Any:
        return Call(self, method, request, repeatable).answer()
