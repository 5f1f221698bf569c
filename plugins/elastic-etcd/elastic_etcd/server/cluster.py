"""The cluster that the agents of a job serve: who its members are, and what follows from what they tell. Pure.

Each listed host has one member, known by its peer URL. Its data never outlives its agent, so an agent that starts has
none. etcd's rule for that case is that a member which may have voted must not come back empty under its old id:
acknowledged writes would be lost, without an error. Two things follow.

- An agent bootstraps the cluster only if every other host refuses connections or runs a member that has never served.
  A host that is silent may hold the data, so the agent waits for it.
- Otherwise it removes its own old member and joins under a new id, as a learner, which has no vote until it has caught
  up. It never removes another host's member, because it cannot know whether that host is down.
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
    """Where a member belongs: a listed host, the port for clients, and the one for other members."""

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
        """For clients."""
        return f"{self.scheme}://{self.address}"

    @property
    def peer_url(self) -> str:
        """For other members; the cluster knows a member by it."""
        return f"{self.scheme}://{joined_host_port(self.host, self.peer_port)}"


@dataclass(frozen=True)
class Cluster:
    """The cluster of one job.

    Args:
        run_id: the job. Members of another one have other names and another token.
        places: one for each member; in any order.
    """

    run_id: str
    places: tuple[Place, ...]

    @property
    def token(self) -> str:
        """Tells this cluster from others, in etcd too."""
        return f"elastic-{hashlib.sha256(self.run_id.encode()).hexdigest()[:_LONGEST_ID]}"

    def name(self, place: Place) -> str:
        """Of the member that belongs there."""
        return f"{self.token}-{place.address}"

    @property
    def initial(self) -> str:
        """As `--initial-cluster` of one that begins."""
        return ",".join(f"{self.name(place)}={place.peer_url}" for place in sorted(self.places))

    def initial_with(self, own: Place, members: Iterable[Member]) -> str:
        """The same for one that stands, which the member at `own` has been added to."""
        named = ((self.name(own) if it.peer_url == own.peer_url else it.name or it.id, it.peer_url) for it in members)
        return ",".join(f"{name}={url}" for name, url in named)


class Member(NamedTuple):
    """One member as the cluster tells of it. `serves`: it has once begun to. `learner`: it has no vote yet."""

    id: str
    name: str
    peer_url: str
    serves: bool
    learner: bool


class Answer(NamedTuple):
    """What a place answered; by default nothing usable. `refused`: its machine refuses connections. `members`: the
    cluster as its member knows it. `healthy`: it has a quorum."""

    place: Place
    refused: bool = False
    members: tuple[Member, ...] = ()
    healthy: bool = False


class Begin(NamedTuple):
    """Start as one of the members that the cluster begins with."""


class Join(NamedTuple):
    """Have the member at `through` remove our old id (empty: there is none), and add us as a learner."""

    through: Place
    removed: str


class Wait(NamedTuple):
    """Nothing can be done now, for this reason."""

    reason: str


def members_of(told: Any) -> tuple[Member, ...]:
    """The members in etcd's JSON, which has other names for the id at the port for members than at the one for clients.
    Raises KeyError, TypeError, IndexError, AttributeError."""
    return tuple(
        Member(
            str(it["ID"] if "ID" in it else it["id"]),
            str(it.get("name", "")),
            str(it["peerURLs"][0]),
            bool(it.get("clientURLs")),
            bool(it.get("isLearner", False)),
        )
        for it in told
    )


def decide(cluster: Cluster, own: Place, answers: Sequence[Answer]) -> Begin | Join | Wait:
    """What an agent without data does for its member. `answers`: of all other places."""
    urls = {place.peer_url for place in cluster.places}
    for answer in answers:
        if any(it.name and not it.name.startswith(f"{cluster.token}-") for it in answer.members):
            return Wait(f"at {answer.place.address} is an etcd that is not of this job; end it, or use other ports")
        if others := sorted({it.peer_url for it in answer.members} - urls):
            told = f"the cluster has members at {', '.join(others)}, which --rdzv-endpoint does not list"
            advice = "list the same hosts on every node, or remove members that are gone for good"
            return Wait(f"{told}; {advice} (etcdctl member remove)")
    if any(it.serves for answer in answers for it in answer.members):
        healthy = next((answer for answer in answers if answer.healthy), None)
        if healthy is None:
            return Wait(majority_lost(cluster, answers) or "the cluster has no leader now")
        mine = _at(own, healthy.members)
        return Join(healthy.place, "" if mine is None else mine.id)
    silent = [answer.place.address for answer in answers if not (answer.refused or answer.members)]
    if silent:
        return Wait(f"no usable answer from {', '.join(silent)}, which may hold a cluster that exists")
    return Begin()


class Leave(NamedTuple):
    """Have the member at `through`, whose id is `heir`, take over if we lead, and remove our id."""

    through: Place
    removed: str
    heir: str


def leaving(own: Place, answers: Sequence[Answer]) -> Leave | bool:
    """How the member at `own` leaves the cluster. True: it is not a member; False: the rest has no quorum without it
    at present. `answers`: of the other places."""
    for answer in answers:
        if not answer.healthy:
            continue
        mine, heir = _at(own, answer.members), _at(answer.place, answer.members)
        if mine is None:
            return True
        if heir is not None and not heir.learner:
            return Leave(answer.place, mine.id, heir.id)
    return False


def majority_lost(cluster: Cluster, answers: Sequence[Answer]) -> str:
    """That the majority of the members is gone, and what remains to do; empty if it is not gone."""
    known = next((answer.members for answer in answers if answer.members), ())
    voters = {it.peer_url for it in known if not it.learner} or {place.peer_url for place in cluster.places}
    there = {answer.place.peer_url for answer in answers if answer.members} & voters
    needed = len(voters) // 2 + 1
    if len(there) >= needed:
        return ""
    away = [place.address for place in cluster.places if place.peer_url in voters - there]
    return (
        f"the cluster that the agents serve has lost its majority: {len(there)} of {len(voters)} members answer, "
        f"{needed} must; bring back {needed - len(there)} of {', '.join(away)} if their agents still run (they are cut "
        "off, or sleep); if these have ended, their data has too: stop all agents, then start the job again"
    )


def shown(cluster: Cluster, answers: Sequence[Answer], leader: str) -> tuple[str, ...]:
    """For people, of each place: how its member stands. `leader`: the id of the one that leads; empty: none does."""
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


def _at(place: Place, members: Iterable[Member]) -> Member | None:
    return next((it for it in members if it.peer_url == place.peer_url), None)
