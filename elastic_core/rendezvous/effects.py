"""The values that pass between a node and its driver: operations on the backend, agent requests, and log lines."""

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
    """One node's entry in the store. `entry` is None if it is unreadable; for `beats`, see `Announced`."""

    key: str
    entry: Entry | None
    beats: int | None = None


@dataclass(frozen=True)
class Unreadable:
    """A value that is stored in place of the state. `others` is whether it may be the state of nodes with a different
    secret or version of elastic-core. `secret` is whether this job has a secret."""

    reason: str
    others: bool
    secret: bool = False


# -- operations: the node asks for one at a time


@dataclass(frozen=True)
class ReadState:
    """Read the state. The answer is the state (None, a `State` or `Unreadable`) and the token of its write."""


@dataclass(frozen=True)
class WriteState:
    """Replace the state that `token` names. The answer is the resulting state, its token, and whether this operation
    wrote it. The answer is None if the result is unknown."""

    state: State
    token: Token | None


@dataclass(frozen=True)
class ReadRoster:
    """Read the roster. The answer is a tuple of registrations, oldest first."""


@dataclass(frozen=True)
class Announce:
    """Announce the node's entry. The answer is roughly how many entries are older."""

    entry: Entry


@dataclass(frozen=True)
class Withdraw:
    """Withdraw an entry. The answer is None."""

    key: str


@dataclass(frozen=True)
class Heartbeat:
    """Send a heartbeat. The answer is the leader counter, or None."""

    key: str
    leading: bool
    look: bool


@dataclass(frozen=True)
class HandOver:
    """Let another node serve the store. The agent can also request this. `heirs` lists the keys of the nodes that may
    take over the store, in order. The answer is whether one of them has done so."""

    heirs: tuple[str, ...]
    timeout: float


Operation = ReadState | WriteState | ReadRoster | Announce | Withdraw | Heartbeat | HandOver


@dataclass(frozen=True)
class Idle:
    """The node has nothing to do until `until` or until the state changes. If `roster`, a change to the roster also
    ends the rest."""

    until: Instant
    roster: bool = False


# -- requests from the agent to the node


@dataclass(frozen=True)
class ChangeState:
    """Replace the state with `change(state, *arguments)`, a pure function that returns the same object if there is
    nothing left to change. The node calls it again if another node writes at the same time.

    Args:
        later: what the node reports in its entry instead if the round is over; see `Reported`.
    """

    change: Callable[..., State]
    arguments: tuple[Any, ...] = ()
    later: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Retire:
    """Withdraw the entry once all earlier requests are done, unless the node wants another round by that time."""


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
