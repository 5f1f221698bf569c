"""The cluster that the agents of a job serve: who its members are, and what follows from what they tell. Pure.

Every listed host has one member, or may have, where some are spares. It is known by its peer URL. Its data never
outlives its agent, so an agent that starts is always one without data, and etcd's rule for those holds: a member that
may have voted must not come back empty under its old id. So whoever finds a cluster takes its old member out of it and
is added under a new id, first as a learner, which does not count for the majority. Two who do this at once are put in
order by etcd, which takes one change at a time and one learner at a time. A spare takes the place of a member in the
same way, once that has been away for some time; who finds upon its return that its place was taken is a spare.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from elastic_core.support.addresses import joined_host_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_LONGEST_ID = 12  # hexadecimal digits
_HEARD = re.compile(
    r'^etcd_network_peer_received_bytes_total\{From="([0-9a-f]{1,16})"\} (\d{1,20}(?:\.\d{1,20})?(?:e\+\d\d)?)$', re.M
)


@dataclass(frozen=True)
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
        places: all of them. They are in the same order everywhere if there are spares, else in any.
        spares: so many of the places, the last ones, have no member when the cluster begins.
    """

    run_id: str
    places: tuple[Place, ...]
    spares: int = 0

    @property
    def first(self) -> tuple[Place, ...]:
        """The places where it begins. So many members it is to have."""
        return self.places[: len(self.places) - self.spares]

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
        return ",".join(f"{self.name(place)}={place.peer_url}" for place in self.first)

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
    """What a place answered whose machine is there. `listens`: somebody does; it may hang, or be busy. `speaks`: an
    etcd that has begun to serve has answered. `members`: the cluster as it knows it; none if it does not tell, as a
    learner. `healthy`: it finds a majority."""

    place: Place
    listens: bool = False
    speaks: bool = False
    members: tuple[Member, ...] = ()
    healthy: bool = False


class Begin(NamedTuple):
    """Start the member that the cluster began with, or begin the cluster."""


class Join(NamedTuple):
    """Have a member at `through` remove these ids, and add ours as a learner."""

    through: Place
    removed: tuple[str, ...]


class Spare(NamedTuple):
    """Nothing: the others are to be the members. `vacant`: there are fewer now than there should be."""

    vacant: bool


class Wait(NamedTuple):
    """Nothing can be done now, for this reason."""

    reason: str


def members_of(answer: Any) -> tuple[Member, ...]:
    """The members in etcd's answer. Raises KeyError, TypeError, IndexError, AttributeError."""
    return tuple(
        Member(
            str(it["ID"]),
            str(it.get("name", "")),
            str(it["peerURLs"][0]),
            bool(it.get("clientURLs")),
            bool(it.get("isLearner", False)),
        )
        for it in answer["members"]
    )


def heard_of(metrics: bytes) -> dict[str, float]:
    """How many bytes a member has heard from which others, by their ids, as its metrics tell. A leader hears from all
    that live several times in a second, and they from it."""
    found = _HEARD.findall(metrics.decode(errors="replace"))
    return {str(int(peer, 16)): float(count) for peer, count in found}


def in_touch(before: Mapping[tuple[str, str], float], after: Mapping[tuple[str, str], float]) -> frozenset[str]:
    """The ids of members that others have heard from in between."""
    return frozenset(peer for (by, peer), count in after.items() if count > before.get((by, peer), 0.0))


def decide(
    cluster: Cluster,
    own: Place,
    answers: Sequence[Answer],
    failed: bool,
    crowded: bool,
    live: frozenset[str] = frozenset(),
) -> Begin | Join | Spare | Wait:
    """What an agent without data does for its member.

    Args:
        answers: of the other places.
        failed: our member has been started before, and has ended by itself.
        crowded: etcd has refused for some time to add ours, because others are away or have not been added in full; or
            there have been fewer members for some time than there should be, and ours is a spare.
        live: the ids of members that others are in touch with: who does not reach them may be the one that is away.
    """
    for answer in answers:
        if any(it.name and not it.name.startswith(f"{cluster.token}-") for it in answer.members):
            return Wait(f"at {answer.place.address} is an etcd that is not of this job; end it, or use other ports")
    formed = [answer for answer in answers if answer.members]
    healthy = next((answer for answer in formed if answer.healthy), None)
    known = healthy or next(iter(formed), None)
    mine = None if known is None else _at(own, known.members)
    never_served = (
        mine is not None and mine.name != "" and not mine.serves
    )  # it is of those that the cluster began with
    if known is None and own not in cluster.first:
        return Spare(vacant=False)
    away = {place.address for place in cluster.places if place != own} - {answer.place.address for answer in answers}
    if known is None and len(away) > len(cluster.first) // 2:  # a cluster may be where nobody is reached
        return Wait(f"no majority of the machines can be reached; not there: {', '.join(sorted(away))}")
    if known is None or (never_served and not failed):
        return Begin()
    if healthy is None:
        return Wait(majority_lost(cluster, formed) or "the cluster has no leader now")
    there = _listening(answers)
    lost = [it for it in healthy.members if it.peer_url not in (*there, own.peer_url) and it.id not in live]
    vacant = len(healthy.members) - len(lost) < len(cluster.first)
    missing = own in cluster.first and len(healthy.members) < len(cluster.first)
    if mine is None and not (missing or (vacant and crowded)):
        return Spare(vacant)
    removed = [] if mine is None else [mine]
    if crowded:
        removed += lost
    return Join(healthy.place, tuple(it.id for it in removed))


def leaving(own: Place, answers: Sequence[Answer]) -> tuple[Place, tuple[str, ...], str] | None:
    """How the member at `own` leaves a cluster that goes on without it: through which place, which ids are removed (its
    own last, after those that are gone, which a majority would count), and who leads then. None: it does not go on.

    Args:
        answers: of the other places.
    """
    through = next((answer for answer in answers if answer.healthy), None)
    if through is None:
        return None
    there = _listening(answers)
    away = [it.id for it in through.members if it.peer_url not in there and it.peer_url != own.peer_url]
    mine, heir = _at(own, through.members), _at(through.place, through.members)
    if mine is None or heir is None or heir.learner:
        return None
    return through.place, (*away, mine.id), heir.id


def reaches_leader(leader: str, answers: Sequence[Answer]) -> bool:
    """Whether the member of this id is among those that were reached."""
    there = _listening(answers)
    return any(it.id == leader and it.peer_url in there for answer in answers for it in answer.members)


def majority_lost(cluster: Cluster, answers: Sequence[Answer]) -> str:
    """That the majority of the members is gone, and what remains to do; empty if it is not gone."""
    known = next((answer.members for answer in answers if answer.members), ())
    voters = {it.peer_url for it in known if not it.learner} or {place.peer_url for place in cluster.first}
    there = {answer.place.peer_url for answer in answers if answer.speaks} & voters
    needed = len(voters) // 2 + 1
    if len(there) >= needed:
        return ""
    away = [place.address for place in cluster.places if place.peer_url in voters - there]
    return (
        f"the cluster that the agents serve has lost its majority: {len(there)} of {len(voters)} members answer, "
        f"{needed} must; bring back {needed - len(there)} of {', '.join(away)} if their agents still run (they are cut "
        "off, or sleep); if these have ended, their data has too: start the job anew, on all nodes"
    )


def shown(cluster: Cluster, answers: Sequence[Answer], leader: str) -> tuple[str, ...]:
    """For people, of each place: how its member stands. `leader`: the id of the one that leads; empty: none does."""
    known = next((answer.members for answer in sorted(answers, key=lambda it: not it.healthy) if answer.members), ())
    there = {answer.place.peer_url for answer in answers if answer.speaks}

    def stands(place: Place) -> str:
        member = _at(place, known)
        if member is None:
            none = "is a spare" if cluster.spares else "is not a member now"
            return none if known else "does not answer"
        if place.peer_url not in there:
            return "does not answer"
        if member.learner:
            return "has no vote yet"
        return "leads" if member.id == leader else "follows"

    return tuple(f"{place.address} {stands(place)}" for place in cluster.places)


def _listening(answers: Iterable[Answer]) -> set[str]:
    """The peer URLs of those that are not gone: one that is slow must not be taken out by others."""
    return {answer.place.peer_url for answer in answers if answer.listens}


def _at(place: Place, members: Iterable[Member]) -> Member | None:
    return next((it for it in members if it.peer_url == place.peer_url), None)
