"""All members asked at once whether they serve; the first to say so wins."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from elastic_etcd.client.failures import Failure, Verdict, judge
from elastic_etcd.client.login import HAS_LEADER
from elastic_etcd.client.messages import rpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.clock import Duration
    from elastic_etcd.client.member import Member

ALIVE = frozenset({Verdict.REFUSED, Verdict.LOG_IN})
"""What a member says after it has found a quorum, if it does not know us or we may not read."""


def knock() -> Any:
    """A request that does no harm, costs little, and is answered only where there is a quorum."""
    return rpc().RangeRequest(key=b"\0", count_only=True)


class RollCall:
    """Used once, by one thread.

    It waits for connections to come about, where other calls would fail at once. That is more than politeness: some
    versions of gRPC (1.62 is one) work on a connection only while a call waits for it.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._first: Member | None = None
        self._heard = threading.Event()

    def winner(self, patience: Duration) -> Member | None:
        """The first member that answers within `patience` seconds. Raises EtcdClosed."""
        calls = [self._ask(member, patience) for member in self._members]
        self._heard.wait(patience)
        for call in calls:
            call.cancel()
        return self._first

    def _ask(self, member: Member, patience: Duration) -> Any:
        call = member.begin(rpc().range, knock(), patience, HAS_LEADER)
        call.add_done_callback(lambda done: self._note(member, done))
        return call

    def _note(self, member: Member, done: Any) -> None:
        if done.code().name == "OK" or judge(Failure.of(done)) in ALIVE:
            self._first = self._first or member
            self._heard.set()
        elif member.closed:
            self._heard.set()
