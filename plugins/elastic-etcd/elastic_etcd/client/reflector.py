"""Lists a range of keys and follows it with a watch. The name and the idea come from Kubernetes' client-go.

A watch is a stream from one member. Whenever it ends, for any reason, the range is listed again before the next watch
opens. As a result, a dead member, compacted changes, and a store that was wiped, restored or replaced are all handled
in the same way: the known state is the last list plus the events since then. Only this object changes the revision of
that state.

There are two reasons why a list may be older than the known state. If the watch was faster, the list is ignored. If
etcd has lost data, the list is older even than the state that was known *before the list was requested*. Without a
loss, this is impossible, because etcd's reads are linearizable.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import Backoff, Instant, SystemClock, later
from elastic_etcd.client.errors import (
    TOO_LARGE,
    ErrorMeaning,
    EtcdClosed,
    EtcdUnreachable,
    Failure,
    judge,
    refusal,
)
from elastic_etcd.client.messages import key_value, rpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.plugin import Clock, Duration
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.client.members import Member, Metadata
    from elastic_etcd.client.values import KeyValue, Range

_DENIALS = ("permission denied", "auth token", "authentication failed", "user name is empty", "auth revision")
_GREATEST = 2**63 - 1
_PAUSES = Backoff(first=0.1, longest=1.0)
_PATIENCE: Duration = 2.0  # seconds that a member has to set up a watch


class _Following:
    """The state of one watch thread, guarded by the reflector's lock.

    `call` and `on` are the thread's stream and the stream's member. `since` is when the stream was opened. `given_up`
    is whether we have cancelled the stream. `late` is whether the reason was that the watch was not established in
    time. `renewed` is whether the token was renewed since the last watch that was established.
    """

    def __init__(self) -> None:
        self.over = threading.Event()
        self.call: Any = None
        self.on: Member | None = None
        self.since = Instant(0.0)
        self.given_up = self.late = False
        self.renewed = False

    def give_up(self) -> None:
        """Cancel the stream. The thread then opens another one, unless it is about to end."""
        self.given_up = True
        if self.call is not None:
            self.call.cancel()

    def end(self) -> None:
        self.over.set()
        self.give_up()


class Reflector:
    """Follows the keys of a range: one key or, if `end` is given, the range `[key, end)`. Thread-safe.

    Subclasses handle lists (`_replace`) and events (`_apply`); both methods are called while `_changed` is held.
    `wait_for` and `follow` start a thread, which ends on `forget` or `close`, or when the client is closed. `losses`
    counts how often etcd was found to have lost data. `interruptions` counts how often the keys were listed again
    because the watch had ended. `revision` is the revision up to which the caller already knows every change; 0 means
    that it knows none.
    """

    def __init__(
        self, client: EtcdClient, key: bytes, end: bytes = b"", clock: Clock | None = None, revision: int = 0
    ) -> None:
        self.losses = self.interruptions = 0
        self._client = client
        self._key, self._end = key, end
        self._clock: Clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._revision = revision
        self._following = False  # whether a stream delivers every change after `_revision`
        self._forgotten = False  # whether `forget` was called since the last list
        self._forgets = 0
        self._relisted = False  # whether the range was listed since the last `wait_for` returned
        self._stream: _Following | None = None
        self._fault: EtcdUnreachable | None = None  # why etcd is currently unreachable
        self._untold = False  # whether no waiter has raised this fault yet
        self._error: Exception | None = None  # why the thread has ended
        self._closed = False

    def read(self) -> None:
        """List the range now. Raises EtcdError."""
        while True:
            with self._changed:
                known, losses, before, forgets = self._revision, self.losses, self._before(), self._forgets
            found = self._list()
            with self._changed:
                if losses != self.losses:
                    continue  # another thread has found a loss in the meantime, so list the range again
                if known <= found.revision < self._revision:
                    return  # the watch was faster
                # A key's mod_revision never decreases unless etcd has lost data.
                if found.revision < known or any(it.mod_revision < before.get(it.key, 0) for it in found.values):
                    self.losses += 1
                    self._following = False
                    if self._stream is not None:
                        self._stream.give_up()
                self._revision = found.revision
                self._forgotten = self._forgotten and forgets != self._forgets
                self._replace(found)
                self._changed.notify_all()
                return

    def wait_for(self, has_news: Callable[[], bool], timeout: Duration) -> bool:
        """Block for at most `timeout` seconds, until `has_news()` returns True or the range was listed again.
        `has_news` is called with the lock held. Returns whether the caller should check the keys, which is False after
        `close` or `forget`. Raises EtcdRefused if the server rejects the watch, EtcdUnreachable once per client timeout
        while no member answers, and EtcdClosed if the client is closed."""
        deadline = later(self._clock.now(), timeout)
        with self._changed:
            self.follow()
            stream = self._stream
            while not self._closed and self._stream is stream:
                if self._error is not None:
                    error, self._error, self._stream = self._error, None, None  # the next call starts another thread
                    raise error
                if self._relisted or has_news():
                    self._relisted = False
                    return True
                if self._fault is not None and self._untold:
                    self._untold = False
                    raise self._fault
                left = deadline - self._clock.now()
                if left <= 0:
                    return False
                self._changed.wait(min(left, self._patience()))
        return False

    def follow(self) -> None:
        """Start following the keys, without waiting."""
        with self._changed:
            if self._stream is None and not self._closed:
                stream, listed = _Following(), self._revision > 0 and not self._forgotten
                threading.Thread(target=self._run, args=(stream, listed), name="etcd watch", daemon=True).start()
                self._stream = stream  # not before: the thread may not start, and the next call then tries again

    def forget(self) -> None:
        """Stop following the keys until the next `wait_for` or `follow`."""
        with self._changed:
            stream, self._stream, self._error = self._stream, None, None
            self._lose_track()
            self._changed.notify_all()
            if stream is not None:
                stream.end()

    def close(self) -> None:
        """Unblock all waiting calls, permanently. Idempotent."""
        with self._changed:
            self._closed = True
        self.forget()

    @property
    def follows(self) -> bool:
        """Whether a watch is open."""
        return self._following

    # For subclasses

    def _list(self) -> Range:
        return self._client.read(self._key, self._end)

    def _replace(self, found: Range) -> None:
        """Handle a list, which is the range's complete content."""

    def _apply(self, pair: KeyValue, deleted: bool) -> None:
        """Handle a change that was reported after the last list. The list may already include it. If the key was
        deleted, the value is empty."""

    def _before(self) -> dict[bytes, int]:
        """Return the mod_revisions of the known keys. If a later list has a lower mod_revision for a key, etcd has lost
        data, even if the list's own revision is high enough."""
        return {}

    def _patience(self) -> Duration:
        """Cancel a watch that its member has not set up in time. Returns how long the caller, which holds the lock, may
        wait before the next call. Waiting callers use this method, because a thread for each new watch would cost
        more."""
        stream = self._stream
        if self._following or stream is None:
            return math.inf
        left = later(stream.since, _PATIENCE) - self._clock.now()
        if left <= 0 and stream.call is not None and not stream.late:
            stream.late = True
            stream.call.cancel()
        return left if left > 0 else _PATIENCE

    def _cut_off(self) -> None:
        """Called when the known state has become unreliable. The reason is in `_fault` or `_error`."""

    # The thread

    def _lose_track(self) -> None:
        """Require a list before the next stream. The caller holds the lock."""
        self._following, self._forgotten = False, True
        self._forgets += 1

    def _run(self, stream: _Following, listed: bool) -> None:
        try:
            with self._client.members.followed(lambda member: self._left(stream, member)):
                self._follow(stream, listed)
        except Exception as error:  # noqa: BLE001 - raised by `wait_for`
            self._report(stream, error)

    def _report(self, stream: _Following, error: Exception) -> None:
        """Pass the error to waiting calls. The thread continues after EtcdUnreachable and ends after other errors."""
        with self._changed:
            if self._stream is stream:
                if isinstance(error, EtcdUnreachable):
                    self._fault, self._untold = error, True
                else:
                    self._error = self._error or error
                    self._lose_track()
                self._cut_off()
                self._changed.notify_all()

    def _left(self, stream: _Following, member: Member | None) -> None:
        """Handle the notification that the client has left this member or, if `member` is None, was closed."""
        with self._changed:
            if member is None:
                stream.end()
                self._report(stream, EtcdClosed(f"the client for {self._client.where} is closed"))
            elif member is stream.on:
                stream.give_up()

    def _follow(self, stream: _Following, listed: bool) -> None:
        """Read one stream after another. `listed` is whether the first one can be opened without listing the keys."""
        failures = 0  # streams since the last watch that was established
        since = self._clock.now()  # when a watch was last established or a fault was last reported
        while not stream.over.is_set():
            try:
                if not listed:
                    self.read()
                    with self._changed:
                        self.interruptions += 1
                        self._relisted = self._relisted or self._stream is stream
                        self._changed.notify_all()
                listed = False
                begun = self._clock.now()
                if self._listen(stream):
                    since = self._clock.now()
                    failures = 0 if since - begun > _PAUSES.first else failures  # a proxy may cut every stream
                elif self._clock.now() >= later(since, self._client.timeout):
                    raise EtcdUnreachable(
                        f"could not start a watch at {self._client.where}: {self._client.members.faults()}"
                    )
            except EtcdUnreachable as error:
                since = self._clock.now()
                self._report(stream, error)
            failures += 1  # pause while servers are down or reject streams, but only after each member was tried
            stream.over.wait(_PAUSES.pause(failures - len(self._client.members.all) + 1))

    def _listen(self, stream: _Following) -> bool:
        """Read one stream to its end. Returns whether the watch was established. Raises EtcdRefused or EtcdClosed."""
        import grpc

        member, metadata, stood = self._client.members.current(), None, False
        with self._changed:
            stream.given_up = stream.late = False
        try:
            metadata = self._client.tokens.metadata(member)
            call, after, losses = self._open(stream, member, metadata)
            for answer in call:
                if misses(answer, after):
                    return stood
                if answer.canceled:
                    reason = answer.cancel_reason
                    raise Failure("PERMISSION_DENIED" if is_denial(reason) else "CANCELLED", reason)
                stood = stood or answer.created
                if not self._take(stream, answer, losses):
                    return stood
            raise Failure("UNAVAILABLE", "the stream ended")
        except (grpc.RpcError, Failure) as error:
            failure = error if isinstance(error, Failure) else Failure.of(error)
            self._failed(stream, member, metadata, Failure("DEADLINE_EXCEEDED", "") if stream.late else failure)
        finally:
            with self._changed:
                stream.give_up()
                stream.call = stream.on = None
                if self._stream is stream:
                    self._following = False
        return stood

    def _open(self, stream: _Following, member: Member, metadata: Metadata) -> tuple[Any, int, int]:
        """Open the stream. Returns the stream, the revision after which it begins, and the current number of losses."""
        with self._changed:
            after, losses = self._revision, self.losses
            create = {"key": self._key, "range_end": self._end, "start_revision": start_after(after)}
            request = rpc().watch.filled(create_request={**create, "progress_notify": True})
            call = stream.call = member.ask(rpc().watch, request, None, metadata)
            stream.on, stream.since = member, self._clock.now()
            if stream.over.is_set() or self._client.members.current() is not member:
                stream.give_up()  # the client left the member, or the thread ended, before there was a call to cancel
        return call, after, losses

    def _take(self, stream: _Following, answer: Any, losses: int) -> bool:
        """Handle a message, and return whether to keep reading the stream."""
        with self._changed:
            if self._stream is not stream or losses != self.losses:
                return False
            if answer.created:
                stream.renewed = False
                self._following, self._fault = True, None
            for event in answer.events:
                self._apply(key_value(event.kv), event.type != 0)
            self._revision = max(self._revision, reached(answer))
            self._changed.notify_all()
        return True

    def _failed(self, stream: _Following, member: Member, metadata: Metadata | None, failure: Failure) -> None:
        """Handle a failed stream. Raises EtcdRefused if retrying cannot help."""
        if stream.given_up:
            return
        members = self._client.members
        judged = judge(failure)
        if TOO_LARGE in failure.details:
            return  # too many events for one message; the next list contains their result
        if judged is ErrorMeaning.LOG_IN or (judged is ErrorMeaning.REFUSED and is_denial(failure.details)):
            # The token may have expired, which some versions report as a denial: try a new one, once.
            if stream.renewed or metadata is None or not self._client.tokens.refused(metadata):
                raise refusal(Failure("PERMISSION_DENIED", failure.details), members.where)
            stream.renewed = True
        elif judged is ErrorMeaning.REFUSED:
            raise refusal(failure, members.where)
        elif members.current() is member:  # otherwise, another call has already noticed
            members.failed(member, failure)


# Helpers for the messages of a watch stream (etcd's `WatchResponse`)


def reached(answer: Any) -> int:
    """Return the revision up to which every change has arrived. If the message contains events, it is the revision of
    the last event, because the header's revision may be ahead of the events. The message that confirms a new watch
    proves nothing."""
    if answer.events:
        return int(answer.events[-1].kv.mod_revision)
    return 0 if answer.created else answer.header.revision


def misses(answer: Any, after: int) -> bool:
    """Return whether a stream after this revision lacks changes, because etcd has compacted or lost them. A member that
    lags behind looks the same, but an additional list does no harm."""
    was_created = answer.created and not answer.canceled
    return answer.compact_revision > 0 or (was_created and answer.header.revision < after)


def start_after(revision: int) -> int:
    """Return the first revision to request. The result can always be encoded, no matter what a server has sent."""
    return min(max(revision, 0) + 1, _GREATEST)


def is_denial(reason: str) -> bool:
    """Return whether this message from the server means that we lack permission."""
    return any(words in reason for words in _DENIALS)
