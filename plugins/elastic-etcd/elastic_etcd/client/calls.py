"""Calls with failover: one request, on one member or another, until one answers or the time is up.

What could have been carried out twice is sent twice never. Such a request goes only to a member that has answered
since it was last found bad: a member of which we do not know that is first asked something harmless that needs a
quorum. So while a cluster has no quorum, and whenever a member turns out to be gone, most writes fail before they are
sent, and are safe to repeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_core.plugin import later
from elastic_etcd.client.errors import (
    EtcdRefused,
    EtcdUnreachable,
    Failure,
    Judgement,
    fault,
    is_mistrust,
    judge,
    refusal,
)
from elastic_etcd.client.login import LOGGING_IN
from elastic_etcd.client.members import probe
from elastic_etcd.client.messages import rpc

if TYPE_CHECKING:
    from elastic_core.plugin import Duration
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.client.members import Member, Metadata
    from elastic_etcd.client.messages import Method

_SHORTEST: Duration = 0.01
_SEARCHES: tuple[Duration, ...] = (0.1, 0.25, 0.5)
"""How long to look for a member that works after one, two, ... attempts that failed."""


class Call:
    """One call of this client on its way, used by one thread. `repeatable`: it does no harm to carry it out twice."""

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
        # Numbers of members, in sets that are replaced, because most calls end before there is one.
        self._logged_in: frozenset[int] = frozenset()
        self._mistrusted: frozenset[int] = frozenset()

    def answer(self) -> Any:
        """What a member answers.

        Raises:
            EtcdUnreachable: nobody answered in time, or it must not be sent again (`landed`).
            EtcdRefused: the server does not want to. EtcdClosed.
        """
        while True:
            member = self._members.current()
            metadata: Metadata = ()
            try:
                metadata = self._tokens.at_hand or self._tokens.metadata(
                    member, min(max(LOGGING_IN, self._client.attempt), self._left())
                )
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
            if judge(failure) is not Judgement.REFUSED:
                raise
        member.found_well()  # without permission for that key, too: quorum comes before permission

    def _handle(self, member: Member, metadata: Metadata, failure: Failure) -> None:
        """Return if there is to be another attempt; else raise."""
        sent, self._sent = self._sent, False
        judgement = judge(failure)
        if judgement is Judgement.LOG_IN and self._may_log_in(member, metadata):
            return
        if judgement in (Judgement.LOG_IN, Judgement.REFUSED):
            member.found_well()
            raise refusal(failure, member.endpoint) from None
        self._members.failed(member, fault(failure, self._members.over_tls))
        if sent and not self._repeatable and judgement is Judgement.ELSEWHERE:
            raise EtcdUnreachable(
                f"expected etcd to tell what came of a write; found: {member.endpoint}: {member.fault}. "
                "It may have been carried out: read before it is repeated",
                landed=True,
            ) from None
        if is_mistrust(failure):  # not worth waiting for, if no side accepts the certificates, and never has
            self._mistrusted |= {member.number}
        members = self._members.all
        if len(self._mistrusted) == len(members) and not any(it.known_good for it in members):
            raise EtcdRefused(f"expected a connection over TLS to etcd; found: {self._members.faults()}") from None
        if self._left() <= _SHORTEST:
            raise EtcdUnreachable(
                f"expected etcd to answer within {self._client.timeout:g} s; found: {self._members.faults()}"
            ) from failure
        search = _SEARCHES[min(self._failures, len(_SEARCHES) - 1)]
        self._failures += 1
        self._members.find(min(search, self._left()))

    def _may_log_in(self, member: Member, metadata: Metadata) -> bool:
        """Once on every member: one that lags behind may not know a token that another has given."""
        again = member.number not in self._logged_in and self._tokens.refused(metadata)
        self._logged_in |= {member.number}
        return again

    def _left(self) -> Duration:
        return max(_SHORTEST, self._deadline - self._client.clock.now())

    def _patience(self) -> Duration:
        """Of one attempt. With nobody else to ask it may take all the time that is left; else twice as long each time
        that all members have failed: answers that come too late only make more work for servers that are busy."""
        members = len(self._members.all)
        if members == 1:
            return self._left()
        return min(self._client.attempt * 2.0 ** min(self._failures // members, 10), self._left())
