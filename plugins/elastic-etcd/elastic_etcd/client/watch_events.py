"""What a watch stream tells, and what follows from it: decisions only, nothing here waits or connects.

A watch is at a position: all up to its revision was told. It goes on from there on any member, so that nothing is lost
or told twice. If the server has forgotten what comes next (compaction), or the cluster is another one (its data was
lost), the watch starts anew from now on, and says so once it stands: what is read after that misses nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_etcd.client.convert import key_value
from elastic_etcd.client.values import Event, News

if TYPE_CHECKING:
    from elastic_core.clock import Duration

_DENIALS = ("permission denied", "auth token", "authentication failed", "user name is empty", "auth revision")
_GREATEST = 2**63 - 1
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0


class Action(enum.Enum):
    """What to do with the stream. AGAIN: make another one at once. BROKEN: the same on another member. DENIED: the
    server does not let us, which a new token may cure."""

    GO_ON = "go on"
    AGAIN = "again"
    BROKEN = "broken"
    DENIED = "denied"


@dataclass(frozen=True)
class WatchMessage:
    """One message of the stream. `created`: the watch stands. `compacted`: it ends, as all before this revision is
    forgotten; 0 if it is not that. `reason`: why it was cancelled, in the server's words."""

    revision: int
    cluster: int = 0
    created: bool = False
    cancelled: bool = False
    compacted: int = 0
    reason: str = ""
    events: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Position:
    """How far a watch has come. `after`: all up to this revision was told; 0: it is to begin with what happens now.
    `cluster`: whose revision that is; 0 for not known. `silent`: that it stands is still to be told. `resync`: and
    with it, that something was missed."""

    after: int = 0
    cluster: int = 0
    silent: bool = True
    resync: bool = False

    @property
    def start(self) -> int:
        """The revision to ask for first; 0 for from now on. One that can be sent, whatever a server has told."""
        return min(self.after, _GREATEST - 1) + 1 if self.after > 0 else 0


@dataclass(frozen=True)
class Step:
    """The new position, what to tell, what to do."""

    position: Position
    news: News | None = None
    action: Action = Action.GO_ON


_LOST = Position(resync=True)


def step(position: Position, message: WatchMessage) -> Step:
    """What follows from one message."""
    if message.compacted or position.cluster not in (0, message.cluster):
        return Step(_LOST, action=Action.AGAIN)
    if message.cancelled:
        return Step(position, action=Action.DENIED if is_denial(message.reason) else Action.BROKEN)
    if message.created:
        return _stands(position, message)
    return _told(position, message)


def _stands(position: Position, message: WatchMessage) -> Step:
    after = position.after or message.revision
    news = News(after, resync=position.resync) if position.silent else None
    return Step(Position(after, message.cluster, silent=False), news)


def _told(position: Position, message: WatchMessage) -> Step:
    """The revision of a message may be ahead of its events while the server catches up, so the last event counts. One
    without events says that nothing has happened up to its revision."""
    events = tuple(event for event in message.events if event.pair.mod_revision > position.after)
    reached = message.events[-1].pair.mod_revision if message.events else message.revision
    after = max(position.after, reached)
    news = News(after, events) if events or not message.events else None
    return Step(Position(after, position.cluster, silent=False), news)


def is_denial(reason: str) -> bool:
    """Whether the server says by these words that we may not."""
    return any(words in reason for words in _DENIALS)


def pause_after(failures: int, members: int) -> Duration:
    """Seconds to wait after so many failures in a row: none until each member was tried, then 0.1, doubled up to 1."""
    rounds = failures - members
    return 0.0 if rounds < 0 else min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(rounds, 10))


def read_message(message: Any) -> WatchMessage:
    """A `WatchResponse` as a value."""
    return WatchMessage(
        revision=message.header.revision,
        cluster=message.header.cluster_id,
        created=message.created,
        cancelled=message.canceled,
        compacted=message.compact_revision,
        reason=message.cancel_reason,
        events=tuple(Event(event.type != 0, key_value(event.kv)) for event in message.events),
    )
