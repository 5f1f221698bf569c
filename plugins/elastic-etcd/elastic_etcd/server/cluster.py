"""The cluster that a job's agents serve: its members, and an agent's next step. This module does no I/O.

Each listed host has one member, which is identified by its peer URL. A member's data does not outlive its agent, so
every agent starts without data. In etcd, a member that may have voted must not return under its old id without its
data, because acknowledged writes could be lost without an error. This leads to two rules.

- An agent bootstraps the cluster only if every other host refuses connections or runs a member that has never served. A
  host that does not answer may hold data, so the agent waits for that host.
- Otherwise the agent removes its own old member and joins under a new id, as a learner, which has no vote until it has
  caught up. The agent never removes another host's member, because it cannot know whether that host is down.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from elastic_core.plugin import joined_host_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LONGEST_ID = 12  # hexadecimal digits


@dataclass(frozen=True, order=True)
class Place:
    """Where a member runs: a listed host, the port for clients, and the port for other members."""

    host: str
    port: int
    peer_port: int
    scheme: str = "http"

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return joined_host_port(self.host, self.port)

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"{self.scheme}://{self.address}"

    @property
    def peer_url(self) -> str:
        """The URL for other members, by which the cluster knows this member."""
        return f"{self.scheme}://{joined_host_port(self.host, self.peer_port)}"


@dataclass(frozen=True)
class Cluster:
    """The cluster of one job, with a member at each place. Another job's members have other names and another token."""

    run_id: str
    places: tuple[Place, ...]

    @property
    def token(self) -> str:
        """A token that distinguishes this cluster from others, for etcd as well."""
        return f"elastic-{hashlib.sha256(self.run_id.encode()).hexdigest()[:_LONGEST_ID]}"

    def name(self, place: Place) -> str:
        """Return the name of the member at this place."""
        return f"{self.token}-{place.address}"

    @property
    def initial(self) -> str:
        """The value of `--initial-cluster` for a new cluster."""
        return ",".join(f"{self.name(place)}={place.peer_url}" for place in sorted(self.places))

    def initial_with(self, own: Place, members: Iterable[Member]) -> str:
        """Return the value of `--initial-cluster` for a cluster to which the member at `own` has been added."""
        named = ((self.name(own) if it.peer_url == own.peer_url else it.name or it.id, it.peer_url) for it in members)
        return ",".join(f"{name}={url}" for name, url in named)


class Member(NamedTuple):
    """One member as the cluster reports it. `serves` is true if it has served at least once, and `learner` is true if
    it has no vote yet."""

    id: str
    name: str
    peer_url: str
    serves: bool
    learner: bool


class Answer(NamedTuple):
    """The answer from a place. The default is an unusable answer. `refused` is true if the place's machine refuses
    connections. `members` are the cluster's members as the place's own member knows them. `healthy` is true if that
    member has a quorum."""

    place: Place
    refused: bool = False
    members: tuple[Member, ...] = ()
    healthy: bool = False


class Begin(NamedTuple):
    """Start as one of the first members of a new cluster."""


class Join(NamedTuple):
    """Have the member at `through` remove our old id, if `removed` names one, and add us as a learner."""

    through: Place
    removed: str


class Wait(NamedTuple):
    """Do nothing now, for this reason."""

    reason: str


def members_of(listed: Any) -> tuple[Member, ...]:
    """Read the members from etcd's JSON, in which the id has different names on the peer port and the client port.
    Raises KeyError, TypeError, IndexError or AttributeError."""
    return tuple(
        Member(
            str(it["ID"] if "ID" in it else it["id"]),
            str(it.get("name", "")),
            str(it["peerURLs"][0]),
            bool(it.get("clientURLs")),
            bool(it.get("isLearner", False)),
        )
        for it in listed
    )


def decide(cluster: Cluster, own: Place, answers: Sequence[Answer]) -> Begin | Join | Wait:
    """Decide the next step of an agent whose member has no data. `answers` are the answers from all other places."""
    urls = {place.peer_url for place in cluster.places}
    for answer in answers:
        if _is_foreign(cluster, answer):
            return Wait(f"the etcd at {answer.place.address} is not part of this job; stop it, or use other ports")
        if others := sorted({it.peer_url for it in answer.members} - urls):
            reason = f"the cluster has members at {', '.join(others)}, which --rdzv-endpoint does not list"
            advice = "list the same hosts on every node, or remove lost members (etcdctl member remove)"
            return Wait(f"{reason}; {advice}")
    if any(it.serves for answer in answers for it in answer.members):
        healthy = next((answer for answer in answers if answer.healthy), None)
        if healthy is None:
            return Wait(majority_lost(cluster, answers) or "the cluster currently has no leader")
        mine = _at(own, healthy.members)
        return Join(healthy.place, "" if mine is None else mine.id)
    silent = sorted(answer.place.address for answer in answers if not (answer.refused or answer.members))
    if silent:
        return Wait(f"no usable answer from {', '.join(silent)}, which may hold an existing cluster")
    return Begin()


class Leave(NamedTuple):
    """If we lead, have the member at `through`, whose id is `heir`, become the leader. Then have it remove our id."""

    through: Place
    removed: str
    heir: str


def leaving(cluster: Cluster, own: Place, answers: Sequence[Answer]) -> Leave | bool:
    """Decide how the member at `own` leaves the cluster. Returns True if it is not a member of the cluster, and False
    if the remaining members currently have no quorum. `answers` are the answers from the other places."""
    healthy = [answer for answer in answers if answer.healthy]
    ours = [answer for answer in healthy if not _is_foreign(cluster, answer)]
    if healthy and not ours:
        return True  # another cluster, which may have a member at our place's address
    for answer in ours:
        mine, heir = _at(own, answer.members), _at(answer.place, answer.members)
        if mine is None:
            return True
        if heir is not None and not heir.learner:
            return Leave(answer.place, mine.id, heir.id)
    return False


def majority_lost(cluster: Cluster, answers: Sequence[Answer]) -> str:
    """If the cluster has lost its majority, explain this and what to do about it. Otherwise, return an empty string."""
    known = next((answer.members for answer in answers if answer.members), ())
    voters = {it.peer_url for it in known if not it.learner} or {place.peer_url for place in cluster.places}
    there = {answer.place.peer_url for answer in answers if answer.members} & voters
    needed = len(voters) // 2 + 1
    if len(there) >= needed:
        return ""
    away = [place.address for place in cluster.places if place.peer_url in voters - there]
    return (
        f"the cluster that the agents serve has lost its majority: {len(there)} of {len(voters)} members answer, and "
        f"{needed} are needed; bring back {needed - len(there)} of {', '.join(away)} if their agents still run (cut "
        "off or suspended); if those agents have ended, their data is lost: stop all agents, then start the job again"
    )


def shown(cluster: Cluster, answers: Sequence[Answer], leader: str) -> tuple[str, ...]:
    """Return a line for each place with its member's status. `leader` is the leader's id, or empty if there is none."""
    known = next((answer.members for answer in sorted(answers, key=lambda it: not it.healthy) if answer.members), ())
    there = {answer.place.peer_url for answer in answers if answer.members}

    def stands(place: Place) -> str:
        member = _at(place, known)
        if member is None:
            return "is not a member" if known else "does not answer"
        if place.peer_url not in there:
            return "does not answer"
        if member.learner:
            return "is a learner"
        return "leads" if member.id == leader else "follows"

    return tuple(f"{place.address} {stands(place)}" for place in cluster.places)


def _is_foreign(cluster: Cluster, answer: Answer) -> bool:
    return any(it.name and not it.name.startswith(f"{cluster.token}-") for it in answer.members)


def _at(place: Place, members: Iterable[Member]) -> Member | None:
    return next((it for it in members if it.peer_url == place.peer_url), None)
