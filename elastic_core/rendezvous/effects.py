"""The values that pass between a node and its driver: operations on the backend, requests of the agent, and notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.clock import Instant
    from elastic_core.interfaces.backend import Token
    from elastic_core.log import EventName
    from elastic_core.rendezvous.model import Entry, State


class Registration(NamedTuple):
    """One node's entry in the store. `entry`: None if it is unreadable. `beats`: see `Announced`."""

    key: str
    entry: Entry | None
    beats: int | None = None


@dataclass(frozen=True)
class Unreadable:
    """Something else is stored in the place of the state. `others`: it may be the state of other nodes, with another
    version of elastic-core or another secret. `secret`: this job has one."""

    reason: str
    others: bool
    secret: bool = False


# -- operations: the node asks for one at a time


@dataclass(frozen=True)
class ReadState:
    """Answer: the state (None, a `State` or `Unreadable`) and the token of its write."""


@dataclass(frozen=True)
class WriteState:
    """Write the state in the place of the one that `token` names. Answer: the state afterwards, its token, and whether
    this operation wrote it; None if that is unknown."""

    state: State
    token: Token | None


@dataclass(frozen=True)
class ReadRoster:
    """Answer: a tuple of registrations, the oldest first."""


@dataclass(frozen=True)
class Announce:
    """Answer: roughly how many entries are older."""

    entry: Entry


@dataclass(frozen=True)
class Withdraw:
    """Answer: None."""

    key: str


@dataclass(frozen=True)
class Heartbeat:
    """A heartbeat. Answer: the leaders' counter, or None."""

    key: str
    leading: bool
    look: bool


@dataclass(frozen=True)
class HandOver:
    """Let another node serve the store; the agent may request this, too. `heirs`: keys of the nodes that may take the
    store over, in order. Answer: whether one of them has."""

    heirs: tuple[str, ...]
    timeout: float


Operation = ReadState | WriteState | ReadRoster | Announce | Withdraw | Heartbeat | HandOver


@dataclass(frozen=True)
class Idle:
    """Nothing to do until `until`, or until the state changes; with `roster`, until the roster changes, too."""

    until: Instant
    roster: bool = False


# -- requests: what the agent asks of the node


@dataclass(frozen=True)
class ChangeState:
    """Change the state by `change(state, *arguments)`: a pure function that returns the same object if there is nothing
    (more) to change. The node calls it again while other nodes write at the same time.

    Args:
        later: if the round is over, the node reports this in its entry instead; see `Reported`.
    """

    change: Callable[..., State]
    arguments: tuple[Any, ...] = ()
    later: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Retire:
    """Withdraw the entry once all earlier requests are done, unless the node wants a round again by then."""


@dataclass(frozen=True)
class RefreshRoster:
    """Read the roster, as the leader does with every heartbeat."""


Request = ChangeState | Retire | RefreshRoster | HandOver


@dataclass(frozen=True)
class LogLine:
    """A line for the log."""

    level: Literal["debug", "info", "warning"]
    event: EventName
    fields: Mapping[str, Any] = field(default_factory=dict)
    trace: Exception | None = None
