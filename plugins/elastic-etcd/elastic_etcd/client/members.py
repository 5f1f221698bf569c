"""The members of the cluster, and which of them is in use: one, as long as it works, then another."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

from elastic_etcd.client.channel import open_channel
from elastic_etcd.client.errors import EtcdClosed
from elastic_etcd.client.login import Tokens
from elastic_etcd.client.member import Member
from elastic_etcd.client.roll_call import RollCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.clock import Duration
    from elastic_etcd.client.login import Login, Metadata
    from elastic_etcd.client.security import Security

    Follower = Callable[[Member | None], None]


class Members:
    """All members, one of them current. Used from several threads.

    Args:
        endpoints: `host:port` each; the first is used first. At least one.
        security: connections are over TLS, with this; None: in plain text.
        login: user and password; None: without.
    """

    def __init__(self, endpoints: Sequence[str], security: Security | None = None, login: Login | None = None) -> None:
        connect = functools.partial(open_channel, security=security)
        self.all = tuple(Member(number, endpoint, connect) for number, endpoint in enumerate(endpoints))
        if not self.all:
            raise ValueError("expected one endpoint at least, found none")
        self.over_tls = security is not None
        self._tokens = Tokens(login)
        self._current = 0
        self._followers: list[Follower] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()

    @property
    def where(self) -> str:
        """The endpoints, for messages."""
        return ", ".join(member.endpoint for member in self.all)

    @property
    def known_good(self) -> bool:
        """Whether any of them has ever answered."""
        return any(member.known_good for member in self.all)

    def faults(self) -> str:
        """What is wrong with each, for messages."""
        return "; ".join(f"{member.endpoint}: {member.fault or 'not asked'}" for member in self.all)

    def current(self) -> Member:
        """The member in use. Raises EtcdClosed."""
        self._expect_open()
        return self.all[self._current]

    def failed(self, member: Member, fault: str = "") -> None:
        """It does not work: go on to the next one, unless another thread has already done so. Followers are told if
        the current member is another one now. What other threads wait for from it is left alone."""
        member.found_bad(fault)
        with self._lock:
            left = member.number == self._current and len(self.all) > 1 and not self._closing.is_set()
            if left:
                self._current = (member.number + 1) % len(self.all)
            followers = list(self._followers) if left else []
        for follower in followers:
            follower(member)

    def follow(self, follower: Follower) -> Callable[[], None]:
        """Call `follower(member)` whenever a member is left because it is bad (streams on it had better move), and
        `follower(None)` at `close`; from any thread, and it must not block. Returns what ends that.

        Raises:
            EtcdClosed: it is too late.
        """
        with self._lock:
            self._expect_open()
            self._followers.append(follower)
        return functools.partial(self._forget, follower)

    def metadata(self, member: Member, patience: Duration = 2.5) -> Metadata:
        """What to send with a call on `member`: that it has to know a leader, and our token, for which we log in there
        if we have none. Waits for `patience` seconds at most.

        Raises:
            Failure: logging in has failed, as any call may.
            EtcdClosed: the client was closed.
        """
        return self._tokens.metadata(member, patience)

    @property
    def metadata_at_hand(self) -> Metadata | None:
        """What `metadata` gives at once, without logging in; None if it would have to."""
        return self._tokens.at_hand

    def refused(self, metadata: Metadata) -> bool:
        """The server does not know the token in there (any more). Whether logging in again may help: then the next
        `metadata` does."""
        return self._tokens.refused(metadata)

    def find(self, patience: Duration) -> bool:
        """To be called between attempts when members fail: ask all at once, and use the first that answers, if it takes
        at most `patience` seconds; so long it takes if none does. Whether one was found. Raises EtcdClosed."""
        found = RollCall(self.all).winner(patience)
        self._expect_open()
        if found is None:
            return False
        found.found_well()
        with self._lock:
            if not self.all[self._current].answered:  # else it is as good, or another thread has found a better one
                self._current = found.number
        return True

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def close(self) -> None:
        """Close all channels and tell the followers. Every call on them ends at once. Idempotent."""
        with self._lock:
            self._closing.set()
            followers, self._followers = self._followers, []
        for follower in followers:
            follower(None)
        for member in self.all:
            member.close()

    def _forget(self, follower: Follower) -> None:
        with self._lock:
            if follower in self._followers:
                self._followers.remove(follower)

    def _expect_open(self) -> None:
        if self._closing.is_set():
            raise EtcdClosed(f"the client of {self.where} is closed")
