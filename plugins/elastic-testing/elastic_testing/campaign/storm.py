"""Random faults: defines their kinds and allowed effects, draws a storm from a seed, and reduces a failing storm.

A storm is a sequence of waves. The faults of a wave overlap, and the next wave starts when the job has recovered.
Except for `read` and `write`, all functions are pure.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

BRIEF = (0.2, 2.0)
SHORT = (0.05, 3.0)
ANY = (0.05, 60.0)
"""Minimum and maximum durations of faults in seconds. Durations are drawn from a log-uniform distribution."""

AWAY = ("agent_stop", "link_cut", "one_way", "apart")
"""Faults in which agents or machines are suspended or disconnected for a while, and then continue."""
IN_COMPANY = ("one_way", "apart", "drain", "newcomer", "spare_kill")
"""Faults that are not drawn while a node is still to join: they need a second machine or agent, or take its place."""
MEET_S = 15.0
"""Minimum number of seconds for which the campaign's own workers try to connect. Real programs may fail earlier."""


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault, and its allowed effects.

    Args:
        what: a description.
        rounds: minimum and maximum number of new rounds. The minimum applies only if the wave has no other fault.
        restarts: maximum number of counted failures, or the exact number if the wave has no other fault.
        beside: maximum number of additional rounds if the wave has other faults.
        lasts: minimum and maximum duration in seconds. After the fault, a lost node is replaced with a new agent.
        harmless_s: maximum duration in seconds of a fault that causes no round.
        linger_s: how many seconds after its end the fault can still take effect.
        weight: relative probability. Faults that start agents are expensive, and therefore have a lower weight.
        loses: whether a node or its disk may be lost.
        needs: prerequisites, see `Setting.there`.
    """

    what: str
    rounds: tuple[int, int] = (0, 0)
    restarts: int = 0
    beside: int = 0
    lasts: tuple[float, float] = (0.0, 0.0)
    harmless_s: float = 0.0
    linger_s: float = 0.0
    weight: float = 1.0
    loses: bool = False
    needs: tuple[str, ...] = ()


_GONE: dict[str, Any] = {"rounds": (1, 3), "loses": True}
_MEMBER: dict[str, Any] = {"loses": True, "needs": ("members",)}
_AT_MACHINE: dict[str, Any] = {"lasts": BRIEF, "needs": ("machines",)}
_SPOILT: dict[str, Any] = {"beside": 3, "lasts": BRIEF, "linger_s": 1.0, "loses": True, "needs": ("machines",)}

KINDS: Mapping[str, FaultKind] = {
    "worker_kill": FaultKind("SIGKILL to a worker", (1, 1), 1, weight=2.0),
    "worker_term": FaultKind("SIGTERM to a worker that exits", (1, 1), 1, weight=2.0),
    "worker_stop": FaultKind("a worker is stopped (SIGSTOP)", lasts=(0.05, 20.0), weight=1.5),
    "worker_memory": FaultKind("a worker reaches its cgroup's memory limit", (1, 1), 1, needs=("memory",)),
    "agent_kill": FaultKind("SIGKILL to an agent, which is restarted", lasts=SHORT, linger_s=1.0, weight=0.7, **_GONE),
    "agent_term": FaultKind("SIGTERM to an agent, which is restarted", lasts=SHORT, linger_s=1.0, weight=0.5, **_GONE),
    "agent_stop": FaultKind("an agent is stopped (SIGSTOP)", (0, 3), lasts=ANY, harmless_s=3.0, linger_s=7.0),
    "guardian_kill": FaultKind("SIGKILL to an agent's guardian", needs=("elastic",)),
    "guardian_stop": FaultKind("an agent's guardian is stopped (SIGSTOP)", lasts=SHORT, needs=("elastic",)),
    "template_kill": FaultKind("SIGKILL to an agent's template", needs=("warm",)),
    "template_stop": FaultKind("an agent's template is stopped (SIGSTOP)", lasts=SHORT, needs=("warm",)),
    "member_kill": FaultKind("SIGKILL to an etcd member, which is restarted", lasts=SHORT, **_MEMBER),
    "member_term": FaultKind("SIGTERM to an etcd member, which is restarted", lasts=SHORT, **_MEMBER),
    "member_stop": FaultKind("an etcd member is stopped (SIGSTOP)", lasts=(0.05, 20.0), **_MEMBER),
    "keeper_kill": FaultKind("SIGKILL to the process that supervises a served etcd member", loses=True,
                             needs=("keepers",)),
    "machine_off": FaultKind("a machine is off, then returns with a new agent", lasts=(0.05, 20.0), linger_s=2.0,
                        needs=("machines",), weight=0.5, **_GONE),
    "machine_empty": FaultKind("a machine is off, then returns with an empty disk", lasts=(0.05, 20.0), linger_s=2.0,
                          needs=("machines",), weight=0.2, **_GONE),
    "link_cut": FaultKind("a machine's link is cut", (0, 3), lasts=ANY, harmless_s=2.5, linger_s=7.0,
                     needs=("machines",)),
    "one_way": FaultKind("one machine's packets to another are lost", (0, 3), lasts=(0.05, 20.0), harmless_s=1.0,
                    linger_s=7.0, needs=("machines",)),
    "apart": FaultKind("two machines cannot reach each other", (0, 3), lasts=(0.05, 20.0), harmless_s=1.0, linger_s=7.0,
                  needs=("machines",), weight=0.5),
    "slow": FaultKind("a link with 64 kbit/s and up to 5 s of queueing", **_AT_MACHINE),
    "lossy": FaultKind("a link that loses one packet in ten", lasts=BRIEF, needs=("machines", "nft")),
    "disorder": FaultKind("a link that reorders and duplicates packets", lasts=BRIEF, needs=("machines", "nft")),
    "narrow": FaultKind("a link with 128 kbit/s and a short queue", **_AT_MACHINE),
    "names_fail": FaultKind("name lookups fail", **_AT_MACHINE),
    "names_stall": FaultKind("name lookups are slow", **_AT_MACHINE),
    "disk_full": FaultKind("a machine's disk is full", **_SPOILT),
    "disk_read_only": FaultKind("a machine's disk is read-only", **_SPOILT),
    "descriptors": FaultKind("an agent runs out of file descriptors", beside=3, lasts=BRIEF, loses=True,
                             needs=("elastic",)),
    "clock_jump": FaultKind("a machine's wall clock jumps, then is corrected", lasts=(0.2, 3.0),
                       needs=("clock", "cc")),
    "newcomer": FaultKind("a spare joins and leaves", beside=2, lasts=(1.0, 4.0), needs=("elastic",),
                     weight=0.4),
    "spare_kill": FaultKind("a spare joins and is killed", beside=2, lasts=(1.0, 4.0),
                       needs=("elastic",), weight=0.2),
    "drain": FaultKind("a node is drained, and a new one joins", lasts=SHORT, linger_s=1.0,
                       needs=("elastic",), weight=0.3,
                  **_GONE),
    "second_job": FaultKind("a job with another id uses the same endpoint, and ends", lasts=(0.5, 2.0),
                       needs=("elastic", "shared"), weight=0.3),
    "join": FaultKind("a node joins that was not started with the job", (1, 1), needs=("elastic", "joins")),
    "done": FaultKind("one node's workers succeed while the other nodes continue", needs=("elastic",)),
    "status": FaultKind("an operator runs `elastic status` repeatedly", lasts=(0.3, 1.0),
                        needs=("elastic",), weight=0.3),
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        kind: a key of `KINDS`.
        place: the number of the affected node or member.
        after_s: its start, in seconds after the start of the wave.
        lasts_s: its duration in seconds.
        other: the second affected place, if there is one.
    """

    kind: str
    place: int
    after_s: float = 0.0
    lasts_s: float = 0.0
    other: int = 0

    @property
    def harmless(self) -> bool:
        """Whether the fault is too short to have an effect."""
        return self.lasts_s <= KINDS[self.kind].harmless_s

    @property
    def rounds(self) -> tuple[int, int]:
        """Minimum and maximum number of new rounds."""
        return (0, 0) if self.harmless and KINDS[self.kind].harmless_s else KINDS[self.kind].rounds


@dataclass(frozen=True)
class FaultWave:
    """Faults that overlap. `quiet_s` is the number of seconds without faults after the job has recovered (0.3)."""

    faults: tuple[Fault, ...]
    quiet_s: float = 0.3

    @property
    def rounds(self) -> tuple[int, int]:
        """Minimum and maximum number of new rounds."""
        if any(fault.kind == "done" for fault in self.faults):
            return 0, 0
        least, most = (sum(fault.rounds[side] for fault in self.faults) for side in (0, 1))
        if len(self.faults) == 1:
            return least, most
        return 0, most + sum(KINDS[fault.kind].beside for fault in self.faults)

    def restarts(self, meet_s: float = MEET_S) -> tuple[int, int]:
        """Minimum and maximum number of counted failures. Two workers that fail at the same time are one failure. If
        nodes can reach the store but not each other, their round fails after the `meet_s` seconds for which its workers
        try to connect."""
        most = sum(KINDS[fault.kind].restarts for fault in self.faults)
        if len(self.faults) == 1:
            return most, most
        away = [fault for fault in self.faults if fault.kind in AWAY and not fault.harmless]
        return 0, most + sum(fault.lasts_s > meet_s for fault in away)

    @property
    def linger_s(self) -> float:
        """How many seconds after their end the wave's faults can still take effect."""
        return max((KINDS[fault.kind].linger_s for fault in self.faults if not fault.harmless), default=0.0)


Storm = tuple[FaultWave, ...]


def draw(
    seed: str,
    faults: int,
    kinds: Sequence[str],
    places: int,
    members: int = 0,
    most_s: float = 60.0,
    losses: int = 3,
) -> Storm:
    """Draw a storm. If `done` is among the kinds, this adds a last wave, in which a node is lost after its workers have
    succeeded. If `join` is among them, the last place joins in one wave, alone or with up to two other faults. Up to a
    third of the faults precede that wave, and affect the other places.

    Args:
        seed: the same seed gives the same storm.
        faults: number of faults.
        kinds: the kinds to draw from, according to their weights.
        places: number of nodes.
        members: number of etcd members, if they do not run on the nodes (0).
        most_s: maximum duration of a fault in seconds (60).
        losses: maximum number of nodes lost in one wave (3), so that a store hosted by the nodes survives.
    """
    lot = random.Random(seed)
    last, joins = "done" in kinds, "join" in kinds
    kinds = [kind for kind in kinds if kind not in ("done", "join")]
    waves: list[FaultWave] = []

    def add(size: int, kinds: Sequence[str], places: int, begun: Sequence[Fault] = ()) -> None:
        weights = [KINDS[kind].weight for kind in kinds]
        candidates = (_fault(lot, lot.choices(kinds, weights)[0], places, members, most_s) for _ in range(size))
        drawn = [*dict.fromkeys(candidates)]  # drop duplicate faults within a wave
        lost = [fault for fault in drawn if KINDS[fault.kind].loses][losses:]
        first, *rest = [*begun, *(fault for fault in drawn if fault not in lost)]
        spread = (Fault(one.kind, one.place, round(lot.uniform(0.0, 2.0), 3), one.lasts_s, one.other) for one in rest)
        quiet = 7.0 if lot.random() < 0.05 else round(lot.uniform(0.1, 0.6), 3)
        waves.append(FaultWave((first, *spread), quiet))

    def fill(faults: int, kinds: Sequence[str], places: int) -> None:
        while (left := faults - sum(len(wave.faults) for wave in waves)) > 0:
            add(min(left, lot.choices((1, 2, 3), (6, 3, 1))[0]), kinds, places)

    if joins:
        if alone := [kind for kind in kinds if kind not in IN_COMPANY]:
            fill(lot.randint(1, max(1, faults // 3)), alone, places - 1)
        add(lot.choice((0, 1, 2)), kinds, places, [Fault("join", places - 1)])
    fill(faults, kinds, places)
    if last and (gone := [kind for kind in ("agent_kill", "agent_term", "drain") if kind in kinds]):
        place = lot.randrange(places)
        # On a busy machine, an agent learns only seconds later that its workers have exited.
        then = Fault(lot.choice(gone), place, 3.0, other=(place + 1) % places)
        waves.append(FaultWave((Fault("done", place, lasts_s=6.0), then)))
    return tuple(waves)


def _fault(lot: random.Random, kind: str, places: int, members: int, most_s: float) -> Fault:
    least, most = KINDS[kind].lasts
    most = max(least, min(most, most_s))
    lasts = least * (most / least) ** lot.random() if least else 0.0
    count = members if members and "members" in KINDS[kind].needs else places
    place = lot.randrange(count)
    return Fault(kind, place, 0.0, round(lasts, 3), (place + lot.randrange(1, count)) % count if count > 1 else 0)


def smaller(storm: Storm, fails: Callable[[Storm], bool]) -> Storm:
    """Reduce a failing storm to fewer faults by delta debugging (Zeller): remove halves, then smaller parts, and
    finally single faults, as long as the remaining storm still fails. `fails` runs a storm, repeatedly if necessary,
    and returns whether it failed."""
    faults = [(number, fault) for number, wave in enumerate(storm) for fault in wave.faults]
    quiet = [wave.quiet_s for wave in storm]

    def of(some: Sequence[tuple[int, Fault]]) -> Storm:
        waves = dict.fromkeys(number for number, _ in some)
        return tuple(FaultWave(tuple(fault for at, fault in some if at == number), quiet[number]) for number in waves)

    parts = 2
    while len(faults) > 1:
        size = max(1, len(faults) // parts)
        for begin in range(0, len(faults), size):
            rest = faults[:begin] + faults[begin + size :]
            if rest and fails(of(rest)):
                faults, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts *= 2
    return of(faults)


def write(storm: Storm, path: Path) -> None:
    """Save a storm to a file."""
    path.write_text(json.dumps([asdict(wave) for wave in storm], indent=1) + "\n")


def read(path: Path) -> Storm:
    """Load a storm from a file."""
    waves = json.loads(path.read_text())
    return tuple(FaultWave(tuple(Fault(**one) for one in wave["faults"]), wave["quiet_s"]) for wave in waves)
