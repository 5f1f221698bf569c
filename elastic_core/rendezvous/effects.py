"""Effects, the values that pass between a node and its driver: operations on the backend, requests of the agent, and
notes."""

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
    """What stands in the store of one node. `entry`: None if it cannot be read. `beats`: see `Announced`."""

    key: str
    entry: Entry | None
    beats: int | None = None


@dataclass(frozen=True)
class Unreadable:
    """What stands in the place of the state is none. `others`: it may be that of other nodes, with another version of
    elastic-core, say, or another secret. `secret`: this job has one."""

    reason: str
    others: bool
    secret: bool = False


# -- operations: what the node asks for, one at a time; in brackets, the answer


@dataclass(frozen=True)
class ReadState:
    """[a pair: the state, None or what is unreadable, and the token of its write]"""


@dataclass(frozen=True)
class WriteState:
    """Write it in the place of the one that `token` names. [a triple: what stands, its token, and whether this was
    written; None if that is unknown]"""

    state: State
    token: Token | None


@dataclass(frozen=True)
class ReadRoster:
    """[a tuple of registrations, the oldest first]"""


@dataclass(frozen=True)
class Announce:
    """[how many entries are older, about]"""

    entry: Entry


@dataclass(frozen=True)
class Withdraw:
    """[None]"""

    key: str


@dataclass(frozen=True)
class Beat:
    """[the leaders' counter, or None]"""

    key: str
    leading: bool
    look: bool


@dataclass(frozen=True)
class HandOver:
    """Also a request of the agent: this process hosts the store, and another node is to. [whether one does]

    Args:
        heirs: keys of nodes that may, the first one first.
        timeout: seconds for it.
    """

    heirs: tuple[str, ...]
    timeout: float


Operation = ReadState | WriteState | ReadRoster | Announce | Withdraw | Beat | HandOver


@dataclass(frozen=True)
class Rest:
    """Nothing to do until `until`, or until there is news of the state; with `roster`, of the roster as well."""

    until: Instant
    roster: bool = False


# -- requests: what the agent asks of the node


@dataclass(frozen=True)
class Amend:
    """Change the state by `change(state, *arguments)`: a pure function that gives back the same object when there is
    nothing (more) to change. It is called again for as long as others write at the same time.

    Args:
        later: once the round is over, the node reports this in its entry instead; see `Reported`.
    """

    change: Callable[..., State]
    arguments: tuple[Any, ...] = ()
    later: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Retire:
    """Withdraw the entry once all earlier requests are done, unless an entry is wanted again by then."""


@dataclass(frozen=True)
class Look:
    """Look which nodes are there, as the leader does with every beat."""


Request = Amend | Retire | Look | HandOver


@dataclass(frozen=True)
class Note:
    """A line for the log."""

    level: Literal["debug", "info", "warning"]
    event: EventName
    fields: Mapping[str, Any] = field(default_factory=dict)
    trace: Exception | None = None
