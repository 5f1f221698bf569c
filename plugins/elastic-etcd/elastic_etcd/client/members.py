"""The members of the cluster, and which of them is in use: one, as long as it works, then another."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import ConfigurationError
from elastic_etcd.client.channel import open_channel
from elastic_etcd.client.errors import EtcdClosed, Failure, Judgement, judge
from elastic_etcd.client.messages import rpc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.plugin import Duration
    from elastic_etcd.client.channel import Security
    from elastic_etcd.client.messages import Method

    Follower = Callable[["Member | None"], None]

Metadata = tuple[tuple[str, str], ...]

HAS_LEADER: Metadata = (("hasleader", "true"),)
"""A member that knows no leader then refuses at once, instead of keeping us waiting."""


def probe() -> bytes:
    """A request that does no harm, costs little, and is answered only where there is a quorum."""
    return rpc().range.filled(key=b"\0", count_only=True)


class Member:
    """An endpoint and the channel to it, which is opened when it is first needed. Used from several threads.

    `answered`: it has given an answer since it was last found bad, so that what is sent now will hardly be in vain.
    `known_good`: it has ever given one. `fault`: what was wrong with it last; empty if nothing was. `closed`: `close`
    was called.
    """

    def __init__(self, number: int, endpoint: str, security: Security | None) -> None:
        self.number = number
        self.endpoint = endpoint
        self.answered = False
        self.known_good = False
        self.fault = ""
        self.closed = False
        self._security = security
        self._channel: Any = None
        self._files: object = None  # what the certificates' files were when it was opened
        self._calls: dict[str, Any] = {}  # by path: each is called in one form only
        self._lock = threading.Lock()

    def call(self, method: Method) -> Any:
        """The method on this member: `call(request, timeout=..., metadata=...)`. Raises EtcdClosed, and
        ConfigurationError for certificates that cannot be used."""
        found = self._calls.get(method.path)
        if found is None:
            with self._lock:
                self._expect_open()
                if self._channel is None:
                    self._open()
                found = self._calls[method.path] = method.on(self._channel)
        return found

    def ask(self, method: Method, request: bytes, timeout: Duration | None, metadata: Metadata) -> Any:
        """The answer to one request, within `timeout` seconds; if the method answers with a stream, the gRPC call that
        brings it. Raises Failure, EtcdClosed."""
        import grpc  # not with this module, which programs import without it

        call = self.call(method)
        try:
            return call(request, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            self._expect_open()
            raise Failure.of(error) from None
        except ValueError:
            raise self._closed_meanwhile() from None

    def begin(self, method: Method, request: bytes, timeout: Duration, metadata: Metadata) -> Any:
        """As `ask`, without waiting for the answer: a gRPC future. It waits for a connection. Raises Failure,
        EtcdClosed."""
        call = self.call(method)
        try:
            return call.future(request, timeout=timeout, metadata=metadata, wait_for_ready=True)
        except ValueError:
            raise self._closed_meanwhile() from None

    def found_well(self) -> None:
        """It answered."""
        self.answered, self.known_good, self.fault = True, True, ""

    def found_bad(self, fault: str) -> None:
        """It did not answer, or not as a member that works. Without a `fault`, the one before is as good."""
        self.answered, self.fault = False, fault or self.fault or "it cannot be reached"
        self._renew()

    def close(self) -> None:
        """End the channel, and with it every call on it. Idempotent."""
        with self._lock:
            self.closed = True
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _open(self) -> None:
        files = self._security and self._security.files()
        self._channel = open_channel(self.endpoint, self._security)
        self._files, self._calls = files, {}

    def _renew(self) -> None:
        """A channel keeps the certificates that it was opened with. If their files have changed since, another channel
        takes its place, unless they cannot be used, as while they are written."""
        with self._lock:
            old = self._channel
            if old is None or self._security is None or self._files == self._security.files():
                return
            with contextlib.suppress(ConfigurationError, OSError):
                self._open()
        if self._channel is not old:
            old.close()

    def _closed_meanwhile(self) -> Failure:
        """For a ValueError of gRPC, which means that the channel is closed. Raises EtcdClosed if the client is, too."""
        self._expect_open()
        return Failure("CANCELLED", "the connection was replaced, because the files of the certificates have changed")

    def _expect_open(self) -> None:
        if self.closed:
            raise EtcdClosed(f"the client of {self.endpoint} is closed")


class Members:
    """All members, one of them current. Used from several threads.

    Args:
        endpoints: `host:port` each; the first is used first. At least one.
        security: connections are over TLS, with this; None: in plain text.
    """

    def __init__(self, endpoints: Sequence[str], security: Security | None = None) -> None:
        self.all = tuple(Member(number, endpoint, security) for number, endpoint in enumerate(endpoints))
        if not self.all:
            raise ValueError("expected one endpoint at least, found none")
        self.over_tls = security is not None
        self.where = ", ".join(endpoints)  # for messages
        self._current = 0
        self._followers: list[Follower] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()

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
            is_current = member.number == self._current
            followers = self._moved_to((member.number + 1) % len(self.all)) if is_current else []
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

    def find(self, patience: Duration) -> bool:
        """To be called between attempts when members fail: ask all at once, and use the first that answers, if it takes
        at most `patience` seconds; so long it takes if none does. Followers are told as by `failed`: a stream may have
        been opened on the one that was next in line. Whether one was found. Raises EtcdClosed."""
        found = _first_to_serve(self.all, patience)
        self._expect_open()
        if found is None:
            return False
        found.found_well()
        with self._lock:
            before = self.all[self._current]
            is_bad = not before.answered  # else another thread has found a better one
            followers = self._moved_to(found.number) if is_bad else []
        for follower in followers:
            follower(before)
        return True

    def close(self) -> None:
        """Close all channels and tell the followers. Every call on them ends at once. Idempotent."""
        with self._lock:
            self._closing.set()
            followers, self._followers = self._followers, []
        for follower in followers:
            follower(None)
        for member in self.all:
            member.close()

    def _moved_to(self, number: int) -> list[Follower]:
        """Use this member, and return the followers to be told if another one was in use. Called with the lock held."""
        before, self._current = self._current, number
        return [] if number == before else [*self._followers]

    def _forget(self, follower: Follower) -> None:
        with self._lock:
            if follower in self._followers:
                self._followers.remove(follower)

    def _expect_open(self) -> None:
        if self._closing.is_set():
            raise EtcdClosed(f"the client of {self.where} is closed")


def _first_to_serve(members: Sequence[Member], patience: Duration) -> Member | None:
    """All members are asked at once whether they serve: the first to say so within `patience` seconds. None, too, when
    they are closed. Raises EtcdClosed.

    It waits for connections to come about, where other calls would fail at once. That is more than politeness: some
    versions of gRPC (1.62 is one) work on a connection only while a call waits for it.
    """
    answered: queue.SimpleQueue[Member | None] = queue.SimpleQueue()

    def note(member: Member, done: Any) -> None:
        # A member that has found a quorum refuses if it does not know us, or if we may not read.
        if done.code().name == "OK" or judge(Failure.of(done)) in (Judgement.REFUSED, Judgement.LOG_IN):
            answered.put(member)
        elif member.closed:
            answered.put(None)

    calls = []
    for member in members:
        with contextlib.suppress(Failure):  # its channel was renewed at this moment; it is asked the next time
            calls.append(member.begin(rpc().range, probe(), patience, HAS_LEADER))
            calls[-1].add_done_callback(functools.partial(note, member))
    try:
        return answered.get(timeout=patience)
    except queue.Empty:
        return None
    finally:
        for call in calls:
            call.cancel()
