"""A third party that is not a node of the job writes to its store. It has the run id, a torch client and unlimited
time. If the job has a secret, the third party can neither take part in the job nor end it."""

from __future__ import annotations

import json
import re
import signal
import time
from dataclasses import replace
from datetime import timedelta
from urllib.parse import unquote

import pytest
from job_of_nodes import eventually, kill

from elastic_core.errors import ExitCode
from elastic_core.rendezvous.codec import decoded_state, encoded_entry, encoded_state
from elastic_core.rendezvous.model import Closed, Entry, RoundId, State
from elastic_core.rendezvous.seal import HmacSeal
from elastic_core.rendezvous.versions import Keys

pytestmark = pytest.mark.torch


@pytest.fixture
def secret(tmp_path):
    """The flag for a file with a secret."""
    return f"--rdzv-secret-file={secret_in(tmp_path / 'secret', b'0123456789abcdef')}"


def secret_in(path, *secrets):
    path.touch(0o600)
    path.write_bytes(b"\n".join(secrets))
    return path


class Stranger:
    """A client of the job's store."""

    def __init__(self, job):
        from torch.distributed import TCPStore

        self.store = TCPStore("127.0.0.1", job.port, None, False, timedelta(seconds=30), wait_for_workers=False)

    def number(self, key):
        try:
            return int(self.store.get(key)) if self.store.check([key]) else 0
        except ValueError:
            return 0

    @property
    def keys(self):
        return Keys("job", self.store.get(Keys("job").id).decode("latin-1"))

    @property
    def head(self):
        return self.number(self.keys.head)

    @property
    def slots(self):
        return self.number(self.keys.slots)

    def counter(self, slot):
        """The heartbeat counter of the node whose first slot this is."""
        key = self.keys.slot(slot)
        found = re.search(rb"(\d+) (\S+) \{", self.store.get(key)) if self.store.check([key]) else None
        return self.keys.beats(int(found[1]), unquote(found[2].decode())) if found else self.keys.beats(slot, "evil/1")


EVERY_KEY = [
    lambda stranger: "elastic/host",
    lambda stranger: stranger.keys.id,
    lambda stranger: stranger.keys.head,
    lambda stranger: stranger.keys.slots,
    lambda stranger: stranger.keys.base,
    lambda stranger: stranger.keys.lead,
    lambda stranger: stranger.keys.moved,
    lambda stranger: stranger.keys.pointed,
    lambda stranger: stranger.keys.state(max(1, stranger.head - 1)),
    lambda stranger: stranger.keys.state(max(1, stranger.head)),
    lambda stranger: stranger.keys.state(stranger.head + 1),
    lambda stranger: stranger.keys.slot(1),
    lambda stranger: stranger.keys.slot(max(1, stranger.slots)),
    lambda stranger: stranger.keys.slot(stranger.slots + 1),
    lambda stranger: stranger.counter(1),
    lambda stranger: stranger.counter(max(1, stranger.slots)),
    lambda stranger: stranger.keys.beats(stranger.slots + 1, "evil/1"),
]
"""Changed one after another, in the job's current epoch."""


def rubbish(store, key):
    store.set(key, "rubbish")


def many_digits(store, key):
    store.set(key, "9" * 5000)


def jump(store, key):
    """For a number. For any other value the store reports an error, and may close the connection."""
    if store.check([key]) and store.get(key).isdigit():
        store.add(key, 2**40)


def nul(store, key):
    store.set(key, (store.get(key) if store.check([key]) else b"") + b"\0")


def delete(store, key):
    store.delete_key(key)


def swap(store, key):
    """Replaces the value by the one that it last read under another key."""
    before = swap.before
    swap.before = store.get(key) if store.check([key]) else b""
    store.set(key, before)


swap.before = b""


ACTS = [rubbish, many_digits, jump, nul, delete, swap]
EACH_COMMIT = [(rubbish, True), (delete, True), (delete, False)]
CASES = [
    pytest.param(act, signed, marks=[] if (act, signed) in EACH_COMMIT else pytest.mark.nightly)
    for act in ACTS
    for signed in (True, False)
]


@pytest.mark.parametrize(("act", "signed"), CASES)
def test_job_survives_tampering_with_every_key(job, secret, act, signed):
    """The workers are untouched, or restarted at no cost: no restart is allowed. Nothing is forged, so a job without a
    secret survives it as well."""
    server = job.serve()
    flags = ("--nnodes=2:3", "--max-restarts=0", *([secret] if signed else []))
    agents = job.agents("a b", *flags)
    first = job.round(2)
    stranger = Stranger(job)
    for key in EVERY_KEY:
        act(stranger.store, key(stranger))
        time.sleep(0.7)  # two heartbeats
    agents.append(job.agent("c", *flags))
    last = job.round(3, after=first)
    assert last.restarts == {"0"}
    job.ends_well(*agents)
    server.signal(signal.SIGTERM)
    assert server.code() == 0


def test_job_survives_deletion_of_all_keys(job, secret):
    """The store host leaves a few seconds after the job is closed; the other agent must know by then."""
    agents = job.agents("a b", "--nnodes=2", "--max-restarts=0", secret)
    job.round(2)
    stranger = Stranger(job)
    for key in [key(stranger) for key in EVERY_KEY]:
        stranger.store.delete_key(key)
    for agent in agents:
        agent.says("entry dropped")
    job.end()
    assert [agent.code(20) for agent in agents] == [0, 0]


def test_invalid_entries_are_ignored(job):
    agents = job.agents("a b", "--nnodes=2:3")
    first = job.round(2)
    stranger = Stranger(job)
    for number, address in enumerate(["10.0.0.1\0", "\ud800", "\x1b[2J", "x" * 5000], 1):
        name = f"evil/{number}"
        keys, slot = stranger.keys, stranger.store.add(stranger.keys.slots, 1)
        entry = encoded_entry(Entry(name, "evil", "evil", address, 4711))
        stranger.store.set(keys.beats(slot, name), "1")
        stranger.store.set(keys.slot(slot), b"%d %s " % (slot, name.encode()) + entry)
        said = f"entry unreadable: node={name} "
        eventually(lambda said=said: any(said in agent.err for agent in agents), f"one to say {said!r}")
    assert [found.port for found in job.rounds()] == [first.port]
    job.ends_well(*agents)


def close_well(stranger, was=None):
    """Write a next state that closes the job, based on the newest one if that is readable."""
    keys, head = stranger.keys, stranger.head
    was = was or decoded_state(stranger.store.get(keys.state(head))[9:])
    over = replace(was, open=False, closed=Closed("a", "all done", True), serial=was.serial + 1)
    stranger.store.set(keys.state(head + 1), b"stranger"[:8] + b":" + encoded_state(over))
    stranger.store.set(keys.head, str(head + 1))


def test_forged_end_is_ignored_with_a_secret(job, secret):
    agents = job.agents("a b", "--nnodes=2", "--max-restarts=1", secret)
    first = job.round(2)
    close_well(Stranger(job), State(round=RoundId(9), origin="x"))
    for agent in agents:
        agent.says("not signed")
    kill(first.pid("a"))
    assert job.round(2, after=first).restarts == {"1"}
    job.ends_well(*agents)


def test_first_foreign_state_only_delays_the_job(job, secret):
    """It is there before any node joins, and looks like a state of nodes with another secret."""
    job.serve()
    stranger = Stranger(job)
    stranger.store.set(Keys("job").id, "0" * 16)
    place = stranger.keys.state(1)
    theirs = HmacSeal("job", [b"fedcba9876543210"]).sealed(place, encoded_state(State(round=RoundId(4), open=True)))
    stranger.store.set(place, b"stranger:" + theirs)
    stranger.store.set(stranger.keys.head, "1")
    agents = job.agents("a b", "--nnodes=2", secret)
    job.round(2)
    job.ends_well(*agents)


def test_forged_end_without_a_secret_is_no_success(job):
    agents = job.agents("a b", "--nnodes=2")
    job.round(2)
    close_well(Stranger(job))
    for agent in agents:
        assert agent.code() == ExitCode.CLOSED_BY_ANOTHER_NODE
        assert "the job was closed by a: all done; this node's workers had not succeeded" in agent.report


def test_foreign_node_gets_no_rank(job, secret):
    """Once with an entry written by hand, once with agents without the secret or with another one."""
    agents = job.agents("a b", "--nnodes=2:3", secret)
    first = job.round(2)
    stranger = Stranger(job)
    keys, slot = stranger.keys, stranger.store.add(stranger.keys.slots, 1)
    entry = Entry("evil/1", "evil", "evil", "127.0.0.1", 4711, rank_hint=0)
    stranger.store.set(keys.beats(slot, "evil/1"), "1")
    stranger.store.set(keys.slot(slot), b"%d evil/1 " % slot + encoded_entry(entry))
    eventually(lambda: any("not signed" in agent.err for agent in agents), "one to say that it is not signed")
    other = secret_in(job._folder / "other", b"fedcba9876543210")
    for name, flag in (("c", "--nnodes=2:3"), ("d", f"--rdzv-secret-file={other}")):
        outsider = job.agent(name, "--nnodes=2:3", flag)
        assert outsider.code() == ExitCode.RENDEZVOUS_FAILED
        assert "--rdzv-secret-file" in outsider.report
    assert [found.port for found in job.rounds()] == [first.port]
    job.ends_well(*agents)


def test_secret_is_rotated_while_the_job_runs(job, tmp_path):
    """The new secret is above the old one in every file. Running agents sign with the old one until they see the new
    one."""
    path = secret_in(tmp_path / "secret", b"0123456789abcdef")
    flag = f"--rdzv-secret-file={path}"
    agents = job.agents("a b", "--nnodes=2:3", flag)
    first = job.round(2)
    secret_in(path, b"fedcba9876543210", b"0123456789abcdef")
    agents.append(job.agent("c", "--nnodes=2:3", flag))
    job.round(3, after=first)
    status = job.command("status", "status", *job.where, flag, "--json")
    assert status.code() == 0
    assert json.loads(status.out)["not_signed"] == 0
    job.ends_well(*agents)


def test_status_and_drain_need_the_secret(job, secret):
    agents = job.agents("a b", "--nnodes=2", secret)
    job.round(2)
    blind = job.command("blind", "status", *job.where)
    assert blind.code() == ExitCode.RENDEZVOUS_FAILED
    assert "--rdzv-secret-file" in blind.err
    assert job.command("drain", "drain", "b", *job.where, secret).code() == 0
    assert agents[1].code() == ExitCode.DRAINED
    agents[0].signal(signal.SIGTERM)
    assert agents[0].code() == 128 + signal.SIGTERM
