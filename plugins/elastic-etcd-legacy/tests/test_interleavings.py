"""Two or more nodes whose reads and writes interleave at random, over keys with etcd's semantics. No two nodes get the
same rank, no round breaks the bounds of its size, and a round forms once faults stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from elastic_etcd.client.values import KeyValue, Put
from elastic_etcd_legacy import steps
from elastic_etcd_legacy.decide import Attempt, Closed, Done, Wait, decide, nodes_waiting
from elastic_etcd_legacy.document import DocumentView, KeepAlive, view_of
from elastic_etcd_legacy.settings import Keys
from elastic_etcd_legacy.steps import Bounds, transaction
from elastic_etcd_legacy.table import Effect, Status

from elastic_core.clock import Instant

KEYS = Keys("/p", "job")
EARLY, LATE = Instant(0.0), Instant(100.0)
CALL_ENDS = Instant(50.0)
TIMED = 1  # the id of leases that are never renewed; nodes have greater ids


@dataclass
class Etcd:
    """Keys, revisions and leases."""

    pairs: dict[bytes, KeyValue] = field(default_factory=dict)
    revision: int = 1

    def commit(self, asked):
        (condition,) = asked.conditions
        stored = self.pairs.get(condition.key)
        if (stored.mod_revision if stored else 0) != condition.expected:
            return False
        self.revision += 1
        for operation in asked.then:
            if isinstance(operation, Put):
                self._put(operation)
            else:
                del self.pairs[operation.key]
        return True

    def _put(self, operation):
        old = self.pairs.get(operation.key)
        created = old.create_revision if old else self.revision
        self.pairs[operation.key] = KeyValue(operation.key, operation.value, created, self.revision, 1, operation.lease)

    def end(self, lease):
        self.revision += 1
        self.pairs = {key: pair for key, pair in self.pairs.items() if pair.lease != lease}


@dataclass
class Node:
    """One node; `seen` is its last view of the keys, which may be stale."""

    lease: int
    attempt: int = 0
    seen: DocumentView = field(default_factory=DocumentView)
    done: Done | None = None
    dead: bool = False

    @property
    def token(self):
        return f"{self.lease}/{self.attempt}"


class World:
    """Runs a schedule, and checks the invariants after every write."""

    def __init__(self, nodes, bounds):
        self.etcd = Etcd()
        self.nodes = [Node(TIMED + 1 + number) for number in range(nodes)]
        self.bounds = bounds
        self.taken = {}
        self.members = {}

    def look(self, node):
        node.seen = view_of(KEYS, self.etcd.pairs)

    def act(self, node, now):
        if node.dead or node.done:
            return None
        move = decide(node.seen, node.token, self.bounds, CALL_ENDS, now)
        if isinstance(move, Done):
            node.done = move
            self._take(node)
        elif isinstance(move, Attempt):
            self._write(node, move.step)
        return move

    def give_up(self, node):
        """The node is out of time, or is asked to leave."""
        if not node.done and (step := steps.give_up(node.seen.document, node.token)):
            self._write(node, step)
        self._leave(node)

    def again(self, node):
        """The node's workers failed, so it needs another round."""
        if node.done:
            self._leave(node)

    def crash(self, node):
        node.dead = True
        self.etcd.end(node.lease)

    def expire(self):
        """End the leases that are never renewed."""
        self.etcd.end(TIMED)

    def _leave(self, node):
        self.etcd.end(node.lease)
        node.attempt += 1
        node.done = None

    def _write(self, node, step):
        effects = step.transition.effects
        lease = node.seen.lease if Effect.KEEP_LEASE in effects else 0
        if {Effect.LEASE_SETUP, Effect.LEASE_FROZEN} & set(effects):
            lease = TIMED
        if Effect.LEASE_CALLER in effects:
            lease = node.lease
        alive = (KeepAlive(), node.lease) if Effect.KEEP_ALIVE in effects else None
        self.etcd.commit(transaction(KEYS, node.seen, step, lease, alive))
        self.check()

    def _take(self, node):
        rank = (node.done.version, node.done.rank)
        assert self.taken.setdefault(rank, node.token) == node.token, "two nodes have one rank"
        assert self.bounds.least <= node.done.world_size <= self.bounds.most
        assert node.done.rank < node.done.world_size

    def check(self):
        view = view_of(KEYS, self.etcd.pairs)
        document = view.document
        if document is None:
            return
        assert len(set(document.participants)) == len(document.participants) <= self.bounds.most
        if document.status in (Status.FROZEN, Status.FINAL):
            assert len(document.participants) >= self.bounds.least
            assert self.members.setdefault(view.version, document.participants) == document.participants
        if document.status is Status.FINAL:
            assert set(document.confirmed) == set(document.participants)
            assert len(document.confirmed) == len(document.participants)

    def settle(self):
        """Let the nodes finish without further faults."""
        for _ in range(40):
            self.expire_if_stuck()
            for node in self.nodes:
                self.look(node)
                self.act(node, LATE)
                # Members of an ended or broken round join again.
                version = node.done.version if node.done else 0
                if node.done and nodes_waiting(view_of(KEYS, self.etcd.pairs), version, self.bounds):
                    self.again(node)

    def expire_if_stuck(self):
        document = view_of(KEYS, self.etcd.pairs).document
        living = {node.token for node in self.nodes if not node.dead}
        if (
            document
            and document.status in (Status.SETUP, Status.FROZEN)
            and not ({document.creator, *document.participants} - {""} <= living)
        ):
            self.expire()


OFTEN = ["go"] * 10 + ["late"] * 6 + ["look"] * 3 + ["stale"] * 4 + ["late and stale"] * 3
SELDOM = ["again", "again", "again", "give up", "crash", "expire"]


def play(world, random):
    for doing in random.choices(OFTEN + SELDOM, k=random.randint(30, 120)):
        node = random.choice(world.nodes)
        if node.dead:
            continue
        if doing in ("go", "late", "look"):
            world.look(node)
        if doing in ("go", "late", "stale", "late and stale"):
            world.act(node, LATE if "late" in doing else EARLY)
        elif doing == "again":
            world.again(node)
        elif doing == "give up":
            world.give_up(node)
        elif doing == "crash":
            world.crash(node)
        elif doing == "expire":
            world.expire()


def expect_round(seed):
    """Check the round that forms after a random schedule. The world checks the invariants after every write."""
    random = Random(seed)
    least = random.randint(1, 3)
    bounds = Bounds(least, least + random.randint(0, 2))
    world = World(random.randint(2, 4), bounds)
    play(world, random)
    world.settle()
    living = [node for node in world.nodes if not node.dead]
    done = [node.done for node in living if node.done]
    if len(living) < bounds.least:
        assert not done
        return
    assert len(done) == min(len(living), bounds.most)
    assert len({move.version for move in done}) == 1
    assert sorted(move.rank for move in done) == list(range(len(done)))


def test_round_forms_after_any_random_schedule():
    for seed in range(400):
        expect_round(seed)


def test_two_nodes_agree_in_every_interleaving():
    """Every order of reads and moves of two nodes that form a round of two; each acts on its last view."""
    seen, stack, finals = set(), [()], 0
    while stack:
        story = stack.pop()
        world = World(2, Bounds(2, 2))
        for number, doing in story:
            node = world.nodes[number]
            world.look(node) if doing == "look" else world.act(node, EARLY)
        state = (
            view_of(KEYS, world.etcd.pairs).document,
            tuple((node.seen.document, node.seen.revision, node.done is not None) for node in world.nodes),
            view_of(KEYS, world.etcd.pairs).revision,
        )
        if state in seen:
            continue
        seen.add(state)
        assert len(seen) < 10_000, "it never ends"
        finals += all(node.done for node in world.nodes)
        stack += [(*story, (number, doing)) for number in (0, 1) for doing in ("look", "act")]
    assert finals > 0
    assert len(seen) > 50


def final(*participants, waiting=()):
    return steps.Rendezvous(Status.FINAL, "", participants, participants, waiting)


def seen(document, version=5, alive=(0, 1)):
    return DocumentView(document, version, 9, 0, {rank: KeepAlive() for rank in alive})


def test_waiting_nodes_are_reported_only_while_there_is_room():
    waiting = final("a", "b", waiting=("c",))
    assert nodes_waiting(seen(waiting), 5, Bounds(1, 3)) == 1
    assert nodes_waiting(seen(waiting), 5, Bounds(1, 2)) == 0  # a spare: a restart would not admit it
    assert nodes_waiting(seen(waiting), 0, Bounds(1, 3)) == 1


def test_broken_round_reports_a_waiting_node():
    assert nodes_waiting(seen(final("a", "b"), alive=(0,)), 5, Bounds(1, 2)) == 1
    assert nodes_waiting(seen(final("a", "b"), version=6), 5, Bounds(1, 2)) == 1
    assert nodes_waiting(seen(steps.Rendezvous(Status.JOINABLE)), 5, Bounds(1, 2)) == 1
    assert nodes_waiting(DocumentView(), 5, Bounds(1, 2)) == 1
    assert nodes_waiting(DocumentView(), 0, Bounds(1, 2)) == 0


def test_closed_job_reports_no_waiting_nodes():
    assert nodes_waiting(seen(steps.Rendezvous(Status.CLOSED)), 5, Bounds(1, 2)) == 0
    assert isinstance(decide(seen(steps.Rendezvous(Status.CLOSED)), "me", Bounds(1, 2), None, EARLY), Closed)


def test_only_the_last_participant_waits_for_the_last_call():
    called = steps.Rendezvous(Status.JOINABLE, participants=("a", "b"))
    first = decide(seen(called), "a", Bounds(2, 3), None, LATE)
    assert isinstance(first, Wait) and first.until is None
    second = decide(seen(called), "b", Bounds(2, 3), CALL_ENDS, EARLY)
    assert isinstance(second, Wait) and second.until == CALL_ENDS
    assert isinstance(decide(seen(called), "b", Bounds(2, 3), CALL_ENDS, CALL_ENDS), Attempt)


def test_nodes_with_different_bounds_do_not_break_the_protocol():
    full = steps.Rendezvous(Status.JOINABLE, participants=("a", "b"))
    assert isinstance(decide(seen(full), "c", Bounds(1, 2), None, LATE), Wait)
