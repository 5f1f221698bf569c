"""The gRPC client through which the rest of this package sends every request to etcd, with failover.

A call tries one member after another until one answers or the time is up. A request that must not be carried out twice
is never sent twice. It is sent only to a member that has answered since that member's last failure; any other member
first has to answer a harmless request that needs a quorum. As a result, if the cluster has no quorum or a member turns
out to be down, most writes fail before they are sent, and are safe to repeat.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import Backoff, SystemClock, later
from elastic_etcd.client.errors import (
    ErrorMeaning,
    EtcdLeaseExists,
    EtcdLeaseGone,
    EtcdRefused,
    EtcdUnreachable,
    Failure,
    is_mistrust,
    judge,
    refusal,
)
from elastic_etcd.client.members import LOGGING_IN, Members, Tokens, probe
from elastic_etcd.client.messages import committed, range_of, range_request, rpc, txn_request
from elastic_etcd.client.values import Get, Lease

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.plugin import Clock, Duration
    from elastic_etcd.client.channel import Security
    from elastic_etcd.client.members import Login, Member, Metadata
    from elastic_etcd.client.messages import Method
    from elastic_etcd.client.values import Committed, Range, Transaction

_SHORTEST: Duration = 0.01
_SEARCHES = Backoff(first=0.1, longest=0.5)  # seconds to search for a working member after failed attempts


class EtcdClient:
    """A client for one cluster. It connects on the first call and is thread-safe. Every call may raise EtcdUnreachable,
    EtcdClosed or EtcdRefused, ConfigurationError for unusable certificates, or PluginError if the package etcd3 is
    missing or has the wrong version.

    Args:
        endpoints: `host:port` of at least one member, IPv6 in brackets. The client uses the first one until it fails.
        security, login: TLS settings and credentials (default: plain text, no authentication).
        timeout: seconds for a call, including all its attempts.
        attempt: seconds for one attempt on one member.
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
        """Read a key or, if `end` is given, the range `[key, end)`, oldest first. Returns at most `limit` keys (0: no
        limit). The read is linearizable and is tried on other members until the client's `timeout`. It may also raise
        EtcdTooLarge."""
        request = range_request(Get(key, end, keys_only, limit=limit))
        return range_of(self._ask(rpc().range, request))

    def transact(self, transaction: Transaction) -> Committed:
        """Carry out a transaction. It is sent to another member only if it is read-only or cannot have taken effect.
        Otherwise, EtcdUnreachable is raised with `landed` set. The caller can then read something unique that the
        transaction wrote, to see if it took effect. Raises ValueError if etcd's limits are exceeded."""
        request = txn_request(transaction)
        reads_only = {Get}.issuperset(map(type, (*transaction.then, *transaction.otherwise)))
        return committed(self._ask(rpc().txn, request, reads_only), transaction)

    def grant(self, ttl: Duration) -> Lease:
        """Create a lease of at least 2 s. The client chooses the id, so that after a lost answer, the repeated request
        finds the lease."""
        lease = 1 + secrets.randbelow(2**62)
        method = rpc().lease_grant
        try:
            answer = self._ask(method, method.filled(ID=lease, TTL=math.ceil(ttl)))
        except EtcdLeaseExists:
            return Lease(lease, self.renew(lease))
        return Lease(answer.ID, float(answer.TTL))

    def revoke(self, lease: int) -> None:
        """End the lease, which deletes its keys. Does nothing if the lease has already ended."""
        method = rpc().lease_revoke
        with contextlib.suppress(EtcdLeaseGone):  # perhaps an earlier attempt revoked it
            self._ask(method, method.filled(ID=lease))

    def renew(self, lease: int) -> Duration:
        """Renew a lease once and return its time to live. Raises EtcdLeaseGone."""
        method = rpc().lease_keep_alive
        answer = self._ask(method, method.filled(ID=lease))
        if answer.TTL <= 0:
            raise EtcdLeaseGone(
                f"etcd {self.where} has no lease {lease:x}: it expired or was revoked; request a new one"
            )
        return float(answer.TTL)

    def close(self) -> None:
        """End every blocked call with EtcdClosed, and leave the leases to expire. Idempotent."""
        self.members.close()

    def _ask(self, method: Method, request: bytes, repeatable: bool = True) -> Any:
        return Call(self, method, request, repeatable).answer()


class Call:
    """One call by one thread. The request is `repeatable` if carrying it out twice does no harm."""

    def __init__(self, client: EtcdClient, method: Method, request: bytes, repeatable: bool) -> None:
        self._client = client
        self._members = client.members
        self._tokens = client.tokens
        self._method = method
        self._request = request
        self._repeatable = repeatable
        self._deadline = later(client.clock.now(), client.timeout)
        self._sent = False
        self._failures = 0
        self._logged_in: set[Member] = set()
        self._mistrusted: set[Member] = set()

    def answer(self) -> Any:
        """Return a member's answer. Raises the errors that `EtcdClient` and its method `transact` document."""
        while True:
            member = self._members.current()
            metadata: Metadata = ()
            try:
                metadata = self._tokens.metadata(member, min(max(LOGGING_IN, self._client.attempt), self._left()))
                return self._ask(member, metadata)
            except Failure as failure:
                self._handle(member, metadata, failure)

    def _ask(self, member: Member, metadata: Metadata) -> Any:
        if not (self._repeatable or member.answered):
            self._probe(member, metadata)
        self._sent = True
        answer = member.ask(self._method, self._request, self._patience(), metadata)
        member.found_well()
        return answer

    def _probe(self, member: Member, metadata: Metadata) -> None:
        try:
            member.ask(rpc().range, probe(), self._patience(), metadata)
        except Failure as failure:
            if judge(failure) is not ErrorMeaning.REFUSED:
                raise
        member.found_well()  # even if it denies access to that key, because etcd checks for a quorum before permissions

    def _handle(self, member: Member, metadata: Metadata, failure: Failure) -> None:
        """Return if another attempt should follow; otherwise raise the error."""
        sent, self._sent = self._sent, False
        judgement = judge(failure)
        if judgement is ErrorMeaning.LOG_IN and self._may_log_in(member, metadata):
            return
        if judgement in (ErrorMeaning.LOG_IN, ErrorMeaning.REFUSED):
            member.found_well()
            raise refusal(failure, member.endpoint) from None
        self._members.failed(member, failure)
        if sent and not self._repeatable and judgement is ErrorMeaning.ELSEWHERE:
            raise EtcdUnreachable(
                f"the outcome of a write is unknown: {member.endpoint}: {member.fault}. "
                "The write may have taken effect, so read the key before you repeat it",
                landed=True,
            ) from None
        if is_mistrust(failure):  # retrying is useless if certificates are rejected everywhere and never worked
            self._mistrusted.add(member)
        members = self._members.all
        if len(self._mistrusted) == len(members) and not any(it.known_good for it in members):
            raise EtcdRefused(f"cannot connect to etcd over TLS: {self._members.faults()}") from None
        if self._left() <= _SHORTEST:
            raise EtcdUnreachable(
                f"etcd did not answer within {self._client.timeout:g} s: {self._members.faults()}"
            ) from failure
        self._failures += 1
        self._members.find(min(_SEARCHES.pause(self._failures), self._left()))

    def _may_log_in(self, member: Member, metadata: Metadata) -> bool:
        """Log in again once per member, because a lagging member may not know a token that another one issued."""
        again = member not in self._logged_in and self._tokens.refused(metadata)
        self._logged_in.add(member)
        return again

    def _left(self) -> Duration:
        return max(_SHORTEST, self._deadline - self._client.clock.now())

    def _patience(self) -> Duration:
        """Return the time limit for one attempt. A single member gets all the remaining time. With several members, the
        limit doubles whenever all of them have failed, because late answers only add to the load on busy servers."""
        members = len(self._members.all)
        if members == 1:
            return self._left()
        return min(self._client.attempt * 2.0 ** min(self._failures // members, 10), self._left())
