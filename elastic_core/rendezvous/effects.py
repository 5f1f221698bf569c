"""The values that pass between a node and its driver: operations on the backend, agent requests, and log lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.clock import Instant
    from elastic_core.interfaces.backend import Token
    from elastic_core.log import EventName
    from elastic_core.rendezvous.model import Entry, State


# -- operations: the node asks for one at a time


@dataclass(frozen=True)
class ReadState:
    """Read the state. The result is the state (None, a `State` or a `ForeignStateError`) and its token."""


@dataclass(frozen=True)
class WriteState:
    """Replace the state that `token` identifies. The result is the state that is stored afterwards, its token, and
    whether this operation wrote that state. The result is None if the stored state is unknown."""

    state: State
    token: Token | None


@dataclass(frozen=True)
class ReadRoster:
    """Read the roster. The result is a tuple of registrations, oldest first."""


@dataclass(frozen=True)
class Announce:
    """Announce the node's entry. The result is the approximate number of older entries."""

    entry: Entry


@dataclass(frozen=True)
class Withdraw:
    """Withdraw an entry. The result is None."""

    key: str


@dataclass(frozen=True)
class Heartbeat:
    """Send a heartbeat. The result is the leader counter, or None if it was not read."""

    key: str
    leading: bool
    look: bool


@dataclass(frozen=True)
class HandOver:
    """Hand over the store to another node. The agent can also request this. `heirs` lists the candidates' keys in order
    of preference. The result is whether another node has taken over the store."""

    heirs: tuple[str, ...]
    timeout: float


Operation = ReadState | WriteState | ReadRoster | Announce | Withdraw | Heartbeat | HandOver


@dataclass(frozen=True)
class Idle:
    """The node has nothing to do before `until`, unless the state or, if it `wants_roster`, the roster changes."""

    until: Instant


# -- requests from the agent to the node


@dataclass(frozen=True)
class ChangeState:
    """Replace the state with `change(state, *arguments)`. `change` is a pure function that returns the same object if
    there is nothing left to change. The node calls it again if another node writes at the same time.

    Args:
        later: fields of `Reported`. If the round is already over, the node sets these fields in its entry instead of
            writing the state.
    """

    change: Callable[..., State]
    arguments: tuple[Any, ...] = ()
    later: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Retire:
    """Withdraw the entry once all earlier requests are done, unless the node wants another round by then."""


@dataclass(frozen=True)
class RefreshRoster:
    """Read the roster now. The leader also reads it with every heartbeat."""


Request = ChangeState | Retire | RefreshRoster | HandOver


@dataclass(frozen=True)
class LogLine:
    """A line for the log."""

    level: Literal["debug", "info", "warning"]
    event: EventName
    fields: Mapping[str, Any] = field(default_factory=dict)
    trace: Exception | None = None
