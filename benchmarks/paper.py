"""The computed cost of a job of 10,000 nodes, for its leader and for each other node.

Production code runs in one process, over a store in memory: no socket, no thread, no network. Names, addresses and
labels are as long as those of a large cluster. The store's own work is excluded. Times are processor time of this
process, the best of `--repetitions`, because other work on the machine only adds to them.

- *decide*: the membership policy, run once by the leader.
- *look*: one read of the roster by the leader, from bytes to the list of late nodes.
- *state*: the value under compare-and-swap, which every node reads when a round forms or ends.
- *first round*: all work of a follower from `begin` to the ranks of its workers, with six heartbeats.
- *next round*: the same for a member of a round that ends, from the moment it learns this.
- *newcomer*: the same for a node that finds a running round, which ends for it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from elastic_testing import MemoryBackend, SharedMemory

from benchmarks.job import BenchmarkError
from benchmarks.rendezvous import numbers
from benchmarks.report import Report, Row, main, parser
from elastic_core.agent.link import ranked_workers
from elastic_core.clock import Instant, later
from elastic_core.interfaces import node as described
from elastic_core.interfaces.backend import Announced
from elastic_core.interfaces.handler import RendezvousStoreInfo
from elastic_core.rendezvous.codec import decoded_state, encoded_entry, encoded_state
from elastic_core.rendezvous.driver import Operations
from elastic_core.rendezvous.effects import Idle, ReadRoster
from elastic_core.rendezvous.model import Entry, Seats, State
from elastic_core.rendezvous.node import Node
from elastic_core.rendezvous.policy import Decision, Wait, Write, decide
from elastic_core.rendezvous.roster import Observation, Registration, Roster, ordered
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout

TARGETS_HOLD_FOR = 10_000
FORMATION_MS = 50.0
STATE_KIB = 1536.0
FEWEST = 2
WORKERS_PER_NODE = 8
NODES_PER_RACK = 32
BEGIN = Instant(0.0)
LATE = Instant(1000.0)
BEATS = 6


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--nodes", type=numbers, default=[100, 1000, 10_000], help="N (100,1000,10000)")
    made.add_argument("--repetitions", type=int, default=9, help="repetitions of each measurement (9)")
    return made


@dataclass(frozen=True)
class Job:
    """A simulated job.

    Args:
        entries: the entries with which all nodes announce themselves at first.
    """

    settings: RendezvousSettings
    entries: tuple[Entry, ...]

    def roster(self, entries: Sequence[Entry], state: State) -> Roster:
        """The roster of these entries, as a leader sees it."""
        found = tuple(Registration(entry.key, entry, 1) for entry in entries)
        return Observation.of(self.settings).after_look(found, state, LATE).roster

    def after(self, entries: Sequence[Entry], state: State) -> State:
        """The state that a leader writes after enough nodes have been present for long."""
        decision = decide(self.roster(entries, state), state, self.settings, LATE, BEGIN)
        if not isinstance(decision, Write):
            raise BenchmarkError(f"the leader waits instead of writing: {decision.reason}")
        return replace(decision.state, serial=decision.state.serial + 1)


def job_of(nodes: int) -> Job:
    """A job whose names, addresses, ports and labels have realistic lengths. The same for the same number of nodes."""
    chance = random.Random(nodes)
    settings = RendezvousSettings("pretrain-2026-11-21", max(1, nodes // 2), nodes, RendezvousTimeout())
    return Job(settings, tuple(_entry(number, chance) for number in range(nodes)))


def _entry(number: int, chance: random.Random) -> Entry:
    rack, place = divmod(number, NODES_PER_RACK)
    host = f"gpu-{rack:03}-{place:02}.pod-{rack // 16}.train.example.com"
    labels = {"zone": f"eu-west-1{'abc'[rack % 3]}", "rack": f"r{rack}", "accelerator": "h100-80g", "pool": "pretrain"}
    node = described.Node(host, host, "trainer", WORKERS_PER_NODE, max_restarts=3, labels=labels)
    entry = Entry.of(node, f"{host}/{chance.getrandbits(32):08x}")
    address = f"10.{number >> 14 & 255}.{number >> 6 & 255}.{number << 2 & 255}"
    return replace(entry, address=address, port=chance.randrange(32768, 61000))


class Stopwatch:
    """Adds up processor time of this process, in milliseconds."""

    def __init__(self) -> None:
        self.spent = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block."""
        begun = time.process_time()
        yield
        self.spent += (time.process_time() - begun) * 1000


def timed(action: Callable[[], object]) -> float:
    """Processor time of `action` in milliseconds."""
    watch = Stopwatch()
    with watch.running():
        action()
    return watch.spent


class Follower:
    """A node that does not lead, on its way to a round. Only its own work is timed.

    Args:
        number: its number in the job; the other nodes have announced themselves.
        state: the state in the store.
    """

    def __init__(self, job: Job, number: int, others: dict[str, Announced], state: State | None = None) -> None:
        own = job.entries[number]
        self._where = RendezvousStoreInfo(own.address, own.port)
        self._memory = SharedMemory(entries={key: item for key, item in others.items() if key != own.key})
        self._store = MemoryBackend(self._memory)
        if state is not None:
            self.write_state(state)
        self._operations = Operations(MemoryBackend(self._memory))
        self._now = BEGIN
        self._node = Node(replace(own, address="", port=0), job.settings)
        self.watch = Stopwatch()

    def write_state(self, state: State) -> None:
        """Let the leader write a state."""
        self._store.set_state(encoded_state(state), self._memory.token)

    def joins(self) -> None:
        """Begin to join a round, as the handler does."""
        with self.watch.running():
            self._node.begin(self._now)
        self._run()
        with self.watch.running():
            self._node.want(self._where, tuple(seat.key for seat in self._node.suspects(64)))
        self._run()

    def beats(self, times: int) -> None:
        """Let the time of several heartbeats pass, with heartbeats of the leader."""
        for _ in range(times):
            self._now = later(self._now, 1.0)
            self._memory.lead += 1
            self._run()

    def receives(self, state: State) -> None:
        """Let the leader write a state, and notify the node of the new state."""
        self.write_state(state)
        with self.watch.running():
            self._node.state_changed()
            self._node.verdict(self._now)
        self._run()

    def arrives(self) -> None:
        """Query the round as handler and agent do. Raises BenchmarkError if the node is not in a round."""
        formed = self._node.membership.formed
        if formed is None or not self._node.membership.running:
            raise BenchmarkError(f"the node is in no round, but {self._node.join_status.value}")
        with self.watch.running():
            asked(formed, self._node.key)

    def _run(self) -> None:
        with self.watch.running():
            while not isinstance(step := self._node.next(self._now), Idle):
                self._node.answered(self._operations.perform(step), self._now)
                if obstacle := self._node.obstacle(self._now):
                    raise BenchmarkError(f"the node cannot join a round: {obstacle}")


def asked(formed: State, key: str) -> None:
    """Look up what a member needs from its round's seats: its rank, the address of rank 0, the round, and its workers'
    ranks."""
    rank, host = formed.rank(key), formed.seats[0]
    if rank is None or not host.member.address:
        raise BenchmarkError(f"the round has no member {key}")
    agreed = described.Round(formed.round, formed.seats.members, formed.restarts, formed.reason)
    ranked_workers(agreed.members, rank)


class Figures:
    """All measurements for one number of nodes. Each method measures once."""

    def __init__(self, nodes: int) -> None:
        self.job = job = job_of(nodes)
        self.entries = entries = job.entries
        self.others = {entry.key: Announced(entry.key, encoded_entry(entry), 1) for entry in entries}
        # A first round with all nodes; and one without the last node, its end when that node arrives, and the next one.
        self.full = job.after(entries, State())
        self.running = job.after(entries[:-1], State())
        self.again = [replace(entry, after=self.running.round) for entry in entries]
        self.ended = job.after([*entries[:-1], self.again[-1]], self.running)
        self.next = job.after(self.again, self.ended)
        self.data = encoded_state(self.full)
        self.member = (nodes - 1) // 2

    @property
    def state_kib(self) -> float:
        """Size of the first round's state, as written."""
        return len(self.data) / 1024

    def decide_gathering(self) -> float:
        return self._decide([self.entries[0], *self.again[1:]], self.ended, Wait, since=LATE)

    def decide_forming(self) -> float:
        return self._decide(self.entries, State(), Write)

    def decide_running(self) -> float:
        return self._decide(self.entries, self.full, Wait)

    def _decide(
        self, entries: Sequence[Entry], state: State, expected: type[Decision], since: Instant = BEGIN
    ) -> float:
        state = decoded_state(encoded_state(state))  # without cached values, as if just read
        roster = self.job.roster(entries, state)
        watch = Stopwatch()
        with watch.running():
            decision = decide(roster, state, self.job.settings, LATE, since)
        if not isinstance(decision, expected):
            raise BenchmarkError(f"the leader did not {expected.__name__.lower()}: {decision.reason}")
        return watch.spent

    def look_first(self) -> float:
        operations, seen = self._leader()
        return timed(lambda: seen.after_look(operations.perform(ReadRoster()), self.full, BEGIN))

    def look_again(self) -> float:
        operations, seen = self._leader()
        seen = seen.after_look(operations.perform(ReadRoster()), self.full, BEGIN)
        return timed(lambda: seen.after_look(operations.perform(ReadRoster()), self.full, LATE))

    def _leader(self) -> tuple[Operations, Observation]:
        return Operations(MemoryBackend(SharedMemory(entries=dict(self.others)))), Observation.of(self.job.settings)

    def encode(self) -> float:
        fresh = replace(self.full, seats=Seats(self.full.seats.text))  # without cached encodings
        return timed(lambda: encoded_state(fresh))

    def decode(self) -> float:
        return timed(lambda: decoded_state(self.data))

    def order(self) -> float:
        return timed(lambda: ordered(self.entries, ()))

    def order_again(self) -> float:
        return timed(lambda: ordered(self.entries, list(self.running.seats.keys)))

    def ask(self) -> float:
        formed = decoded_state(self.data)
        return timed(lambda: asked(formed, self.entries[self.member].key))

    def first_round(self) -> float:
        node = Follower(self.job, self.member, self.others)
        node.joins()
        node.beats(BEATS)
        node.receives(self.full)
        node.arrives()
        return node.watch.spent

    def next_round(self) -> float:
        node = Follower(self.job, self.member, self.others)
        node.joins()
        node.receives(self.running)
        node.arrives()
        node.watch.spent = 0.0
        node.receives(self.ended)
        node.joins()
        node.receives(self.next)
        node.arrives()
        return node.watch.spent

    def newcomer(self) -> float:
        node = Follower(self.job, len(self.entries) - 1, self.others, self.running)
        node.joins()
        node.receives(self.ended)
        node.receives(self.next)
        node.arrives()
        return node.watch.spent


TIMES: dict[str, Callable[[Figures], float]] = {
    "leader decides: waits for the last node": Figures.decide_gathering,
    "leader decides: a round forms": Figures.decide_forming,
    "leader decides: a round runs": Figures.decide_running,
    "leader looks: all entries are new": Figures.look_first,
    "leader looks: only heartbeats are new": Figures.look_again,
    "ranks of a first round": Figures.order,
    "ranks of a next round": Figures.order_again,
    "state: encode": Figures.encode,
    "state: decode": Figures.decode,
    "member asks for rank, host, workers' ranks": Figures.ask,
    "first round of a follower": Figures.first_round,
    "next round of a follower": Figures.next_round,
    "newcomer": Figures.newcomer,
}
BOUNDED = ("first round of a follower", "next round of a follower", "newcomer")


def rows(nodes: int, state_kib: float, times: dict[str, list[float]]) -> list[Row]:
    """The rows for one number of nodes. The size of the state comes first."""
    found = [Row(f"{nodes} nodes: state", "KiB", {"elastic": state_kib})]
    found += [Row(f"{nodes} nodes: {what}", "ms", {"elastic": min(of)}) for what, of in times.items()]
    if nodes == TARGETS_HOLD_FOR:
        _judge(found[0], STATE_KIB, "< 1536 (etcd's limit is 1.5 MiB)")
        for row, what in zip(found[1:], times, strict=True):
            if what in BOUNDED:
                _judge(row, FORMATION_MS, f"< {FORMATION_MS:g}")
    return found


def _judge(row: Row, limit: float, words: str) -> None:
    value = row.values["elastic"]
    row.target, row.met = words, value is not None and value < limit


def measure(arguments: argparse.Namespace) -> Report:
    """Measure each number of nodes."""
    report = Report("paper", {"repetitions": arguments.repetitions})
    if min(arguments.nodes, default=0) < FEWEST:
        raise BenchmarkError(f"expected --nodes of {FEWEST} or more, found {arguments.nodes}")
    for nodes in arguments.nodes:
        figures = Figures(nodes)
        times = {what: [one(figures) for _ in range(arguments.repetitions)] for what, one in TIMES.items()}
        report.rows += rows(nodes, figures.state_kib, times)
        report.measurements[str(nodes)] = {"state_bytes": len(figures.data), "milliseconds": times}
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))
