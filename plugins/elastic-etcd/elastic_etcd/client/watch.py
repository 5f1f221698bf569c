"""A watch that outlives the members it is on.

A thread of its own opens a stream on the current member, listens, and opens another one when it breaks. What the stream
tells is judged in `watch_events.py`. Only whoever waits in `next` looks at the time: a stream that does not come about
is given up by the one who waits for it.
"""

from __future__ import annotations

import collections
import threading
from typing import TYPE_CHECKING, Any

from elastic_core.clock import SystemClock, later
from elastic_etcd.client.errors import TOO_LARGE, EtcdClosed, EtcdUnreachable, Failure, Judgement, fault, judge, refusal
from elastic_etcd.client.messages import rpc
from elastic_etcd.client.watch_events import Action, Position, pause_after, read_message, step

if TYPE_CHECKING:
    from elastic_core.clock import Clock, Duration, Instant
    from elastic_etcd.client.login import Tokens
    from elastic_etcd.client.members import Member, Members
    from elastic_etcd.client.values import News
    from elastic_etcd.client.watch_events import WatchMessage


class EtcdWatch:
    """Follows a range of keys. It goes on by itself when members die: from the revision after the last one told, on
    any member, so that nothing is lost or told twice. Used from one thread, except `close`. Its own thread ends with
    `close`, or when the client is closed.

    Args:
        members, tokens: the client's.
        key, end: one key, or with `end` all up to it.
        after: tell what happens after this revision; 0 for from now on.
        timeout: for how long it may be on no member before `next` raises EtcdUnreachable; in seconds.
        patience: how long a member may take to set it up before the next one is asked; in seconds.
        clock: times these.
    """

    def __init__(
        self,
        members: Members,
        tokens: Tokens,
        key: bytes,
        end: bytes = b"",
        after: int = 0,
        timeout: Duration = 5.0,
        patience: Duration = 2.0,
        clock: Clock | None = None,
    ) -> None:
        self._members = members
        self._tokens = tokens
        self._key, self._end = key, end
        self._timeout, self._patience = timeout, patience
        self._clock = clock or SystemClock()
        self._position = Position(after)
        self._news: collections.deque[News] = collections.deque()
        self._error: Exception | None = None
        self._closed = False
        self._closing = threading.Event()
        self._changed = threading.Condition()
        self._call: Any = None
        self._on: Member | None = None
        self._asked: Instant | None = None  # when the stream was opened that has not been answered yet
        self._down: Instant | None = self._clock.now()  # since when it is on no member, or since that was told
        self._late = False  # we have given up the stream, as it was not answered
        self._fault = ""
        self._failures = 0
        self._renewed = False  # a new token was asked for, and has not been of use yet
        self._unfollow = members.follow(self._left)
        threading.Thread(target=self._run, name="etcd watch", daemon=True).start()

    def next(self, timeout: Duration) -> News | None:
        """Block until there is news, for `timeout` seconds at most (then None), or until it is closed (None).

        The first news comes as soon as the watch stands.

        Raises:
            EtcdRefused: the server will not let us watch.
            EtcdUnreachable: no member could be reached for longer than the client's timeout. The watch can be used on.
        """
        deadline = later(self._clock.now(), timeout)
        with self._changed:
            while not self._closed and not self._news:
                if self._error is not None:
                    raise self._error
                now = self._clock.now()
                self._judge(now)
                if now >= deadline:
                    return None
                self._changed.wait(min(deadline, *self._limits()) - now)
            return None if self._closed else self._news.popleft()

    def close(self) -> None:
        """Let a blocked `next` come back at once. Idempotent."""
        with self._changed:
            self._closed = True
            self._closing.set()  # before the stream ends: it is no fault of the member that it does
            self._end_stream()
            self._changed.notify_all()

    def _limits(self) -> list[Instant]:
        """When `_judge` is to be asked again."""
        asked = [] if self._asked is None else [later(self._asked, self._patience)]
        return asked + (
            [later(self._down, self._timeout)] if self._down is not None else [later(self._clock.now(), 3600)]
        )

    def _judge(self, now: Instant) -> None:
        """Give up a stream that does not come about; and say so, from time to time, when none does."""
        if self._asked is not None and now >= later(self._asked, self._patience):
            self._asked, self._late = None, True
            self._end_stream()
        if self._down is not None and now >= later(self._down, self._timeout):
            self._down = now
            raise EtcdUnreachable(
                f"expected to watch keys on {self._members.where}, found no member that answered within "
                f"{self._timeout:g} s{self._cause()}; see that etcd runs there, can be reached, and has a quorum"
            )

    def _cause(self) -> str:
        return f" ({self._fault})" if self._fault else ""

    def _end_stream(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def _left(self, member: Member | None) -> None:
        """The client has left this member, or (None) closes."""
        with self._changed:
            if member is None:
                self._error = self._error or EtcdClosed(f"the client of {self._members.where} is closed")
                self._closing.set()
                self._changed.notify_all()
            if member is None or member is self._on:
                self._end_stream()

    # What follows runs in the watch's own thread.

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._rest(self._listen())
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
        finally:
            self._unfollow()

    def _listen(self) -> Action:
        """Open a stream and listen, until it ends. Returns what is to be done then. Raises EtcdRefused."""
        import grpc

        member, metadata = self._members.current(), None
        try:
            metadata = self._tokens.metadata(member)
            action, failure = self._follow(self._open(member, metadata))
        except (grpc.RpcError, Failure) as error:
            failure = error if isinstance(error, Failure) else Failure.of(error)
            action = self._action_for(failure)
        finally:
            self._closed_stream()
        if action is Action.DENIED:
            self._renew(metadata, failure)
        elif action is Action.BROKEN:
            self._found_bad(member, failure)
        return action

    def _follow(self, call: Any) -> tuple[Action, Failure]:
        """Take what the stream tells, to its end."""
        for answer in call:
            message = read_message(answer)
            action = self._take(message)
            if action is not Action.GO_ON:
                return action, Failure("CANCELLED", message.reason)
        return Action.BROKEN, Failure("UNAVAILABLE", "the stream ended")

    def _action_for(self, failure: Failure) -> Action:
        if TOO_LARGE in failure.details:  # what came at once: it is not needed, as all is read again
            self._position = Position(resync=True)
            return Action.AGAIN
        judged = judge(failure)
        if judged is Judgement.REFUSED:
            raise refusal(failure, self._members.where)
        return Action.DENIED if judged is Judgement.LOG_IN else Action.BROKEN

    def _open(self, member: Member, metadata: Any) -> Any:
        create = rpc().WatchCreateRequest(
            key=self._key, range_end=self._end, start_revision=self._position.start, progress_notify=True
        )
        request = rpc().WatchRequest(create_request=create).SerializeToString()
        call = member.call(rpc().watch)(request, metadata=metadata)
        with self._changed:
            self._call, self._on, self._asked, self._late = call, member, self._clock.now(), False
            if self._closing.is_set() or self._closed or self._members.current() is not member:
                call.cancel()  # the member was left, or all is over, before there was a call to end
            self._changed.notify_all()  # whoever waits has a limit more to watch
        return call

    def _take(self, message: WatchMessage) -> Action:
        done = step(self._position, message)
        with self._changed:
            self._position = done.position
            if done.action is Action.GO_ON and message.created:
                self._asked = self._down = None
                self._failures, self._renewed, self._fault = 0, False, ""
            if done.news is not None:
                self._news.append(done.news)
                self._changed.notify_all()
        return done.action

    def _closed_stream(self) -> None:
        with self._changed:
            self._end_stream()
            self._call = self._on = self._asked = None
            if self._down is None:
                self._down = self._clock.now()
            self._changed.notify_all()

    def _found_bad(self, member: Member, failure: Failure) -> None:
        """Tell that the member is bad, unless it was another call that found out, or all is over."""
        if self._closing.is_set():
            return
        if self._late:
            failure = Failure("DEADLINE_EXCEEDED", "")
        if self._members.current() is member:
            self._members.failed(member, fault(failure, self._members.over_tls))
        self._fault = f"{member.endpoint}: {member.fault}" if member.fault else self._fault

    def _renew(self, metadata: Any, failure: Failure) -> None:
        """The token may be too old, which not every version says in so many words: try a new one, once."""
        if self._renewed or metadata is None or not self._tokens.refused(metadata):
            raise refusal(Failure("PERMISSION_DENIED", failure.details), self._members.where)
        self._renewed = True

    def _rest(self, action: Action) -> None:
        """Do not spin while the servers are away."""
        if action is Action.BROKEN:
            self._failures += 1
            begun = self._clock.now()
            pause = pause_after(self._failures, len(self._members.all))
            if pause and not self._closing.is_set() and self._members.find(pause):
                self._closing.wait(max(0.0, pause - (self._clock.now() - begun)))  # it may answer and refuse streams
