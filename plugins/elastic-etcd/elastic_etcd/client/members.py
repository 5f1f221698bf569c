"""The members of the cluster, and the token with which they are asked. The client uses one member until it fails, and
then switches to another."""

from __future__ import annotations

import contextlib
import functools
import queue
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_etcd.client.channel import Credentials, open_channel
from elastic_etcd.client.errors import ErrorMeaning, EtcdClosed, Failure, fault, judge
from elastic_etcd.client.messages import rpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elastic_core.plugin import Duration
    from elastic_etcd.client.channel import Security
    from elastic_etcd.client.messages import Method

    Follower = Callable[["Member | None"], None]

Metadata = tuple[tuple[str, str], ...]

HAS_LEADER: Metadata = (("hasleader", "true"),)
"""Makes a member that has no leader reject the request immediately instead of holding it."""
LOGGING_IN: Duration = 2.5
"""The minimum time limit for a login. It is high because checking a password is slow, and the server checks only one at
a time."""
NOT_ENABLED = "authentication is not enabled"
_TOKEN = re.compile(r"[!-~]{1,8192}")  # text that can be sent as metadata


def probe() -> bytes:
    """Return a cheap and harmless request that is answered only if there is a quorum."""
    return rpc().range.filled(key=b"\0", count_only=True)


class Member:
    """An endpoint and its channel, which opens on first use. Thread-safe.

    `answered` means that the member has answered since its last failure. `known_good` means that it has answered at
    least once. `fault` describes its last problem, or is empty.
    """

    def __init__(self, endpoint: str, security: Credentials | None) -> None:
        self.endpoint = endpoint
        self.answered = False
        self.known_good = False
        self.fault = ""
        self.closed = False
        self._security = security
        self._channel: Any = None
        self._files: object = None  # the certificate files' state when the channel was opened
        self._calls: dict[str, Any] = {}  # by path
        self._lock = threading.Lock()

    def call(self, method: Method) -> Any:
        """Return the method on this member as `call(request, timeout=..., metadata=...)`. Raises EtcdClosed, or
        ConfigurationError for unusable certificates."""
        found = self._calls.get(method.path)
        if found is None:
            with self._lock:
                self._expect_open()
                if self._channel is None:
                    self._open()
                found = self._calls[method.path] = method.on(self._channel)
        return found

    def ask(self, method: Method, request: bytes, timeout: Duration | None, metadata: Metadata) -> Any:
        """Return the answer to a request. For a streaming method, return the gRPC call to iterate over. Raises Failure
        or EtcdClosed."""
        import grpc  # imported late, because programs may import this module without grpc

        call = self.call(method)
        try:
            return call(request, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            self._expect_open()
            raise Failure.of(error) from None
        except ValueError:
            raise self._closed_meanwhile() from None

    def begin(self, method: Method, request: bytes, timeout: Duration, metadata: Metadata) -> Any:
        """Send a request and return a gRPC future, which also waits for a connection. Raises Failure or EtcdClosed."""
        call = self.call(method)
        try:
            return call.future(request, timeout=timeout, metadata=metadata, wait_for_ready=True)
        except ValueError:
            raise self._closed_meanwhile() from None

    def found_well(self) -> None:
        """Record that the member answered."""
        self.answered, self.known_good, self.fault = True, True, ""

    def found_bad(self, fault: str) -> None:
        """Record that the member did not answer properly. If `fault` is empty, the previous fault is kept."""
        self.answered, self.fault = False, fault or self.fault or "it cannot be reached"
        self._renew()

    def close(self) -> None:
        """Close the channel, which ends every call on it. Idempotent."""
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
        """Replace the channel if the certificate files have changed."""
        with self._lock:
            old = self._channel
            if old is None or self._security is None or self._files == self._security.files():
                return
            self._open()
        old.close()

    def _closed_meanwhile(self) -> Failure:
        """Return the failure for gRPC's ValueError, which means that the channel was closed during the call. Raises
        EtcdClosed if the client is also closed."""
        self._expect_open()
        return Failure("CANCELLED", "the connection was replaced, because the certificate files have changed")

    def _expect_open(self) -> None:
        if self.closed:
            raise EtcdClosed(f"the client for {self.endpoint} is closed")


class Members:
    """All members, one of which is current. Initially this is the first of `endpoints`. Thread-safe."""

    def __init__(self, endpoints: Sequence[str], security: Security | None = None) -> None:
        credentials = None if security is None else Credentials(security)
        self.all = tuple(Member(endpoint, credentials) for endpoint in endpoints)
        if not self.all:
            raise ValueError("a client requires at least one endpoint")
        self._over_tls = security is not None
        self.where = ", ".join(endpoints)  # for messages
        self._current = self.all[0]
        self._followers: list[Follower] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def faults(self) -> str:
        """Return every member's problem, for messages."""
        return "; ".join(f"{member.endpoint}: {member.fault or 'not asked'}" for member in self.all)

    def current(self) -> Member:
        """Return the member in use. Raises EtcdClosed."""
        self._expect_open()
        return self._current

    def failed(self, member: Member, failure: Failure) -> None:
        """Record that a member failed, and switch to the next one unless another thread already has. Followers are
        notified of a switch. Other threads' calls on the failed member continue."""
        member.found_bad(fault(failure, self._over_tls))
        self._switch(member, self.all[(self.all.index(member) + 1) % len(self.all)])

    @contextlib.contextmanager
    def followed(self, follower: Follower) -> Iterator[None]:
        """Within this context, call `follower(member)` when the client leaves a failed member, so that streams can
        move, and `follower(None)` on `close`. The follower may run in any thread and must not block. Raises
        EtcdClosed."""
        with self._lock:
            self._expect_open()
            self._followers.append(follower)
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(ValueError):  # `close` has removed it
                self._followers.remove(follower)

    def find(self, patience: Duration) -> None:
        """Ask all members and, if the current one has failed, switch to the first that answers within `patience`
        seconds. Followers are notified as in `failed`, because a stream may already be open on the member that was
        left. Raises EtcdClosed."""
        found = _first_to_serve(self.all, patience)
        self._expect_open()
        if found is not None:
            found.found_well()
            before = self._current
            if not before.answered:  # otherwise, another thread has already found one
                self._switch(before, found)

    def close(self) -> None:
        """Close all channels, which ends every call, and notify the followers. Idempotent."""
        with self._lock:
            self._closing.set()
            followers, self._followers = self._followers, []
        for follower in followers:
            follower(None)
        for member in self.all:
            member.close()

    def _switch(self, before: Member, after: Member) -> None:
        with self._lock:
            if after is before or self._current is not before:  # another thread has already switched
                return
            self._current = after
            followers = [*self._followers]
        for follower in followers:
            follower(before)

    def _expect_open(self) -> None:
        if self._closing.is_set():
            raise EtcdClosed(f"the client for {self.where} is closed")


def _first_to_serve(members: Sequence[Member], patience: Duration) -> Member | None:
    """Return the first member that proves within `patience` seconds that it serves, or None if no member does or the
    client is closed. Raises EtcdClosed.

    These requests wait for a connection, whereas other calls fail immediately. Some gRPC versions (such as 1.62) make
    progress on a connection only while a call waits for it.
    """
    answered: queue.SimpleQueue[Member | None] = queue.SimpleQueue()

    def note(member: Member, done: Any) -> None:
        # A rejection also proves that there is a quorum: the member does not know our user, or denies the read.
        if done.code().name == "OK" or judge(Failure.of(done)) in (ErrorMeaning.REFUSED, ErrorMeaning.LOG_IN):
            answered.put(member)
        elif member.closed:
            answered.put(None)

    calls = []
    for member in members:
        with contextlib.suppress(Failure):  # its channel is being replaced; the next search asks it again
            calls.append(member.begin(rpc().range, probe(), patience, HAS_LEADER))
            calls[-1].add_done_callback(functools.partial(note, member))
    try:
        return answered.get(timeout=patience)
    except queue.Empty:
        return None
    finally:
        for call in calls:
            call.cancel()


@dataclass(frozen=True)
class Login:
    """The user and the password, which repr() does not show."""

    user: str
    password: str = field(repr=False)


class Tokens:
    """The token in use. If a new one is needed, one thread logs in, and other threads wait."""

    def __init__(self, login: Login | None) -> None:
        self._known: Metadata | None = None
        self._login = login
        self._logging_in = threading.Lock()

    def metadata(self, member: Member, patience: Duration = LOGGING_IN) -> Metadata:
        """Return metadata for a call on `member`. The member then rejects the call unless it knows a leader and our
        token. If there is no token, log in within `patience` seconds. Raises Failure if the login failed, and
        EtcdClosed."""
        if self._login is None:
            return HAS_LEADER
        if (known := self._known) is not None:
            return known
        if not self._logging_in.acquire(timeout=patience):
            raise Failure("DEADLINE_EXCEEDED", "logging in took too long")
        try:
            known = self._known
            if known is None:
                known = self._known = _log_in(member, self._login, patience)
            return known
        finally:
            self._logging_in.release()

    def refused(self, metadata: Metadata) -> bool:
        """Record that the server does not know this token. Returns whether the next `metadata` will log in again."""
        if self._login is None:
            return False
        if self._known == metadata:  # otherwise another thread has already replaced it
            self._known = None
        return True


def _log_in(member: Member, login: Login, patience: Duration) -> Metadata:
    request = rpc().authenticate.filled(name=login.user, password=login.password)
    try:
        answer = member.ask(rpc().authenticate, request, patience, HAS_LEADER)
    except Failure as failure:
        if NOT_ENABLED in failure.details:
            return HAS_LEADER  # as in etcd's own clients: users may set a password before the cluster requires it
        # The traceback's frames hold the request, so a tool that prints local variables would print the password.
        raise failure.with_traceback(None) from None
    finally:
        del request
    if not _TOKEN.fullmatch(answer.token):
        raise Failure("INTERNAL", "it sent an invalid token")
    return (*HAS_LEADER, ("token", answer.token))
