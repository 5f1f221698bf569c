"""Every reader of foreign data, as a function of bytes: data in a store, from a pipe or a socket, or in a file. A
reader accepts its bytes or raises one of its own exceptions; anything else is a defect, as is an input that takes more
than a second, or a disproportionate amount of memory.

The core's readers are here, a plugin's in `plugins/*/tests/fuzz_targets.py`. `test_targets.py` tries each reader with
Hypothesis and with past findings (`kept/TARGET/` next to the reader's file); `run.py`, which is `tox run -e fuzz`, lets
a fuzzer look for inputs that reach new code.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from elastic_testing import FakeClock, MemoryBackend, SharedMemory

from elastic_core import config, report
from elastic_core.agent import link
from elastic_core.builtin import MemoryStore
from elastic_core.compat.state_store import StateStore
from elastic_core.config.explain import as_dict, as_text
from elastic_core.errors import (
    ChildFailedError,
    ConfigurationError,
    ElasticError,
    ProcessFailure,
    RendezvousStateError,
)
from elastic_core.events import Event, RdzvEvent
from elastic_core.hooks.manager import PluginManager
from elastic_core.interfaces.backend import Announced, EntryDroppedError
from elastic_core.interfaces.handler import RendezvousParameters, RendezvousStoreInfo
from elastic_core.interfaces.node import Member, Round
from elastic_core.interfaces.workers import RoundPlan, WorkerExit, WorkerRanks
from elastic_core.observers import History
from elastic_core.operate import status
from elastic_core.operate.observation import JobObservation
from elastic_core.rendezvous.codec import LONGEST_STATE, decoded_entry, decoded_state, encoded_entry, encoded_state
from elastic_core.rendezvous.model import Cause, Closed, End, Entry, Report, RoundId, Seat, Seats, State, first_failures
from elastic_core.rendezvous.policy import Write, decide
from elastic_core.rendezvous.roster import Observation
from elastic_core.rendezvous.roster_log import LogRecord, decoded_record
from elastic_core.rendezvous.seal import HmacSeal, SignedBackend, seal_of
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout
from elastic_core.rendezvous.store_backend import StoreBackend
from elastic_core.rendezvous.store_connection import FactoryConnector, StoreConnection
from elastic_core.rendezvous.versions import Keys, epoch_named
from elastic_core.support.secret_files import read_secret
from elastic_core.support.sockets import hosts_of, is_remote, joined_host_port, split_host_port
from elastic_core.text import in_one_line, printable
from elastic_core.workers.failure import Evidence, describe, explain, read_error_file

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_WORD = 4000
"""The maximum length of an error about foreign data, however long the data is."""


@dataclass(frozen=True)
class Target:
    """`read` may raise only `ours`; a search starts from `seeds` and from `kept`."""

    read: Callable[[bytes], object]
    ours: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    kept: Path
    """The folder of past findings."""

    def __call__(self, data: bytes) -> None:
        try:
            self.read(data)
        except self.ours as error:
            of_the_user = isinstance(error, ConfigurationError)  # such an error quotes the user's value
            assert of_the_user or len(str(error)) <= LONGEST_WORD, f"an error of {len(str(error))} characters"


TARGETS: dict[str, Target] = {}


def target(ours, *seeds):
    """Decorator that adds a function to the targets under its name, with `-` for `_`."""

    def enter(read):
        name = read.__name__.replace("_", "-")
        TARGETS[name] = Target(read, ours, seeds, Path(read.__code__.co_filename).parent / "kept" / name)
        return read

    return enter


_FOLDER = tempfile.TemporaryDirectory(prefix="elastic-fuzz-")
FOLDER = Path(_FOLDER.name)
EMPTY = FOLDER / "empty"
EMPTY.mkdir()
DEEP = b"[" * 100_000
MANY_DIGITS = b"9" * 5000


def text_of(data):
    """Decode bytes as Python decodes those of the system: invalid UTF-8 becomes surrogates."""
    return data.decode("utf-8", "surrogateescape")


def written(name, data):
    """Write the bytes to a file that only this user can read."""
    path = FOLDER / name
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    return path


# -- messages between nodes

MEMBER = ("a", "host-a", "10.0.0.1", "default", 2)
ENTRY = Entry("a/1", "a", "host-a", "10.0.0.1", 29400, "default", 2, labels={"rack": "7"}, unreachable=("b/1",))


def _states():
    seats = Seats.of([Seat("a/1", Member(*MEMBER), 29400), Seat("b/1", Member(*MEMBER))])
    failure = ProcessFailure(0, 7, 1, message="boom", timestamp=1.5, global_rank=3, node="a", stderr_tail=("line",))
    end = End(Cause.FAILURE, "a/1", "it failed", (Report("a/1", "a", (failure,), True),), True)
    running = State(
        round=RoundId(3), open=True, seats=seats, min_nodes=1, max_nodes=4, max_restarts=3, origin="a/1", serial=9
    )
    ended = State(
        round=RoundId(3), seats=seats, gone=("b/1",), done=("a/1",), draining={"a/1": 20.0}, end=end, reason="why"
    )
    closed = State(closed=Closed("a", "done", True), refused=(("d/1", "no"),))
    return tuple(map(encoded_state, (State(), running, ended, closed)))


STATES = _states()
_HEAD, _, _ = STATES[1].partition(b"\n")
BOMB = b"\n" + zlib.compress(b"\nabc\t\t\t\t\t0\t1" * 1_000_000)


@target((RendezvousStateError,), encoded_entry(ENTRY), encoded_entry(Entry("b/1", "b")), DEEP, MANY_DIGITS)
def entry(data):
    found = decoded_entry(data)
    assert decoded_entry(encoded_entry(found)) == found


@target((RendezvousStateError,), *STATES, _HEAD + BOMB, DEEP, MANY_DIGITS)
def state(data):
    found = decoded_state(data)
    again = decoded_state(encoded_state(found))
    assert again.seats == found.seats
    assert again.round == found.round


@target((ValueError,), *(decoded_state(one).seats.text.encode() for one in STATES))
def seats(data):
    for packed in (data, zlib.compress(data)):
        with suppress(ValueError):
            found = Seats.unpacked(packed, LONGEST_STATE)
            assert [found.rank(seat.key) for seat in found] == list(range(len(found)))
            assert len(found.members) == len(found)


@target((ValueError,), LogRecord("a/1", 7, b"x").encode(), LogRecord("a b/1", 1, None).encode(), b"007 %ff x")
def record(data):
    found = decoded_record(data)
    assert decoded_record(found.encode()) == found


def _announced(values):
    """These entries as a backend returns them, each under its own key; unreadable ones under other keys."""
    found = {}
    for place, value in enumerate(values):
        key = f"k{place}"
        with suppress(RendezvousStateError):
            key = decoded_entry(value).key
        found[key] = Announced(key, value, place)
    return list(found.values())


@target((RendezvousStateError,), *STATES, encoded_entry(ENTRY), STATES[1] + b"\n\n" + encoded_entry(ENTRY))
def shown(data):
    """What `elastic status` shows of a state and of entries, separated by empty lines."""
    first, *rest = data.split(b"\n\n")
    announced = _announced(rest or [first])
    for one in (first if rest else None, None):
        seen = JobObservation(0.0, 0.0, Observation(1.0, 5)).after_look(one, announced, 6.0)
        made = status.snapshot_of(seen, config.Settings(rdzv_backend="toy", rdzv_endpoint="here:1", rdzv_id="job"))
        for text in (status.as_text(made), str(ChildFailedError("train.py", dict(first_failures(made.state))))):
            assert printable(text) == text
        json.dumps(status.as_dict(made))


@target(
    (RendezvousStateError,),
    *(b"\n\n".join((one, encoded_entry(ENTRY), encoded_entry(Entry("b/1", "b", after=RoundId(3))))) for one in STATES),
)
def decided(data):
    """A node's decision about a state and entries, separated by empty lines."""
    first, *rest = data.split(b"\n\n")
    seen = JobObservation(0.0, 0.0, Observation(1.0, 5)).after_look(first, _announced(rest), 6.0)
    for now in (0.0, 6.0, 1e9):
        found = decide(seen.nodes.roster, seen.state, SETTINGS, now, 0.0)
        if isinstance(found, Write) and max(found.state.round.number, found.state.restarts) < 2**62:
            assert decoded_state(encoded_state(found.state)).seats == found.state.seats


SETTINGS = RendezvousSettings("job", 1, 2, RendezvousTimeout(), 1.0, 5)


@target((ElasticError,), b'["default", 2, 1, 0]', b'["default", 2, 1, 1000000000000]', DEEP, MANY_DIGITS, b"{}")
def introduction(data):
    """The introductions that members of a round exchange through its store."""
    store = MemoryStore()
    store.set("elastic/member/1", data)
    formed = link.exchange_introductions(store, 0, 2, Round(1, (Member("", "", "", "default", 2),)))
    assert all(worker.world_size < 2**32 for worker in link.ranked_workers(formed.members, 0))


@target((ElasticError,), b"10.0.0.1\n29500", b"a\n99999", b"\xff\n-1", b"a\n" + MANY_DIGITS)
def store_info(data):
    """The address of the workers' store, as rank 0 publishes it."""
    address, _, port = data.partition(b"\n")
    store = MemoryStore()
    store.set("MASTER_ADDR", address)
    store.set("MASTER_PORT", port)
    RendezvousStoreInfo.build(1, store)


# -- stores

EPOCH = Keys("job", "0123456789abcdef")
SECRET = b"0123456789abcdef"


class NoWaiting(StoreConnection):
    """A connection to a store to which no other client writes."""

    def fetch(self, key, timeout, closed):
        return self.store.compare_set(key, b"-", b"-") if self.store.check([key]) else None


class InMemory(FactoryConnector):
    def connect(self, aside=False):
        return NoWaiting(self._make(), self.where)


class Mover:
    """A mover whose store may be elsewhere, but not here."""

    listed = False

    def serve(self):
        return None

    def stop_serving(self, unless=""):
        pass

    def moved(self, where):
        split_host_port(where, 1)

    def connected_to(self, where):
        return where == "here:1"


@target(
    (ElasticError, EntryDroppedError),
    b"!announce\n!roster\n!write\n!state\n!beat\n!look\n!withdraw\n!roster",
    b"!write\nhead=001\n!write\n!state",
    b"!signed\n!write\ns/2=x\n!state\n!write",
    b'!moves\n!write\ns/2=(moving)["a/1"]\n!state\nmoved=node7:29400\n!state',
    b"slots=3\ne/1=1 a/1 x\ne/2=2 b/1 y\ne/3=3 a/1\nb/1=4\n!roster\nbase=2\n!roster\n!announce\n!late\n!roster",
    b"slots=1099511627776\n!roster\nhead=1099511627776\n!state\n!write\nlead=1099511627776\n!look",
    b"id=x\n!state\n!write\nid=\n!state\n!write\n-id\n!write",
    b"s/1=0123abcd:{}\nhead=1\n!state\n!write\ns/3=x\n!state\n-s/2\n!state\n!freeze",
)
def keys(data):
    """A node in a store to which another program writes, within the node's epoch. `key=value` is a write of that
    program, `-key` a deletion (`%0a` stands for a byte in both); `!word` is an operation of the node."""
    clock, store = FakeClock(), MemoryStore()
    store.set(EPOCH.id, EPOCH.epoch)
    lines = data.split(b"\n")[:20]
    moves = Mover() if b"!moves" in lines else None
    node = StoreBackend(InMemory(lambda: store, "memory"), "job", clock=clock, mover=moves)
    if b"!signed" in lines:
        node.sign_with(HmacSeal("job", [SECRET]))
    acts = {
        b"!announce": lambda: node.announce("a/1", b"entry"),
        b"!beat": lambda: node.beat("a/1", leading=True, look=False),
        b"!look": lambda: node.beat("a/1", leading=False, look=True),
        b"!withdraw": lambda: node.withdraw("a/1"),
        b"!roster": node.roster,
        b"!state": node.get_state,
        b"!write": lambda: node.set_state(b"{}", (node.get_state() or (b"", None))[1]),
        b"!anew": lambda: node.set_state(b"{}"),
        b"!late": lambda: clock.advance(10.0),
        b"!freeze": lambda: node.hand_over(["b/1"], 0.0),
        b"!wait": lambda: (node.wait_for_state(None, 0.0), node.wait_for_roster(0.0)),
    }
    for line in lines:
        name, is_write, value = line.partition(b"=")
        if is_write:
            store.set(_key(store, name), unquote_to_bytes(value))
        elif line.startswith(b"-"):
            store.delete_key(_key(store, line[1:]))
        elif line in acts:
            with suppress(ElasticError, EntryDroppedError):
                acts[line]()
    assert store.num_keys() < 600 * len(lines)
    node.close()


def _key(store, name):
    text = unquote_to_bytes(name).decode("latin-1")
    now = Keys("job", epoch_named(store.compare_set(EPOCH.id, b"", b"")))
    return now.id if text == "id" else now.head.removesuffix("head") + text


def _two_methods(data):
    """A backend with these bytes as its state."""
    backend = MemoryBackend(SharedMemory())
    backend.set_state(data)
    return backend


@target(
    (ElasticError, TimeoutError, ValueError),
    b'{"version":1,"serial":"x","values":{"k":"MQ==","other":""}}',
    b'{"version":1,"serial":"x","values":{"k":"Kg=="}}',
    DEEP,
)
def state_store(data):
    """A store on top of a backend of two methods, whose state is this."""
    store = StateStore(_two_methods(data))
    store.add("k", 1)
    store.compare_set("k", "", "1")
    store.delete_key("k")


@target((ElasticError,), HmacSeal("job", [SECRET]).sealed("state", b"{}"), b"signed 00000000 x", b'{"version":3}')
def signed(data):
    """A value where a signed one is expected."""
    seal = HmacSeal("job", [SECRET])
    backend = _two_methods(data)
    backend.announce("a/1", data)
    node = SignedBackend(backend, seal)
    assert not node.roster()
    found = node.get_state()
    assert found is None or seal.sealed("state", found[0]) == data


# -- files

RANKS = WorkerRanks(0, 0, 0)
PLAN = RoundPlan(1, "job", "a", "default", 0, 1, 1, 1, "10.0.0.1", 29500, True, 0, 3, (RANKS,))


@target(
    (),
    b'{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "T\\n", "timestamp": "1700000000"}}}',
    b'{"message": "\\ud800\\u202e\\u001b[31m"}',
    b'{"message": {"message": [1e999, NaN, -0.0], "errorCode": 7}}',
    b"Traceback\xff",
    DEEP,
    b'{"a":' * 100_000,
    MANY_DIGITS,
)
def error_file(data):
    """From the files of a worker to the report, the result file and the other nodes."""
    content = read_error_file(written("error.json", data))
    evidence = Evidence(WorkerExit(0, 7, 1), RANKS, ("line",), "error.json", content, 1.5)
    failures = explain([evidence], PLAN)
    error = ChildFailedError("train.py", failures)
    for text in (report.as_text(error), str(error)):
        assert printable(text) == text
    report.write_result(FOLDER / "result.json", report.outcome("job", 1, error, History()))
    end = End(Cause.FAILURE, "a/1", "it failed", (Report("a/1", "a", (describe(evidence, PLAN),), True),))
    decoded_state(encoded_state(State(round=RoundId(1), end=end)))


@target(
    (ConfigurationError,),
    b"nnodes = '1:4'\nmax-restarts = 3\n[rendezvous]\nbackend = 'c10d'\n[rendezvous.c10d]\njoin_timeout = 7\n",
    b"run_id = 7\nlog-level = 'debug'",
    b"log_dir = '~!x'\nresult_file = \"a\\u0000b\"",
    b"config = 'x'\nconfig = 1979-05-27T07:32:00Z",
    b"[rendezvous]\nid=0o7\nx={a=1}",
    b"run_id = 0x" + b"f" * 5000,
    b"a=" + b"[" * 5000,
    b"a=" + MANY_DIGITS,
)
def config_file(data):
    path = written("elastic.toml", data)
    _reading(["--config", str(path), "train.py"], {})


@target((ConfigurationError,), b"[tool.elastic]\nnnodes = 2\n", b"[tool]\nelastic = 7", b"tool.elastic=" + b"[" * 5000)
def project_file(data):
    path = written("pyproject.toml", data)
    _reading(["--config", str(path), "train.py"], {})


@target((ConfigurationError,), b"ELASTIC_NNODES=1:4\nPET_RDZV_CONF=a=1,,b=2\nLOGLEVEL=debug",
        b"SLURM_JOB_ID=7\nSLURM_STEP_ID=0\nSLURM_STEP_NUM_NODES=2\nSLURM_STEP_NUM_TASKS=2\nSLURM_NODEID=1",
        b"JOB_COMPLETION_INDEX=1\nELASTIC_NNODES=2\nELASTIC_RDZV_ENDPOINT=node0:29400\nELASTIC_RDZV_ID=j")  # fmt: skip
def environment(data):
    """Variables, one per line."""
    pairs = (line.partition("=") for line in text_of(data).split("\n"))
    _reading(["train.py"], {name: value for name, _, value in pairs})


@target((ConfigurationError,), b"--nnodes\n1:4\n--rdzv-conf=a=1,b=2\n-t\n0:3,1:1\ntrain.py\n--x",
        b"--nproc-per-node=gpu\n--stop-signals=TERM\n--rdzv-endpoint=[::1]:7\n--log-dir=~/x\nt", b"-m\n--\nx",
        b"--log-dir=~!x", b"--config=~!x")  # fmt: skip
def flags(data):
    """The words of a command line, one per line."""
    words = [word.replace("\0", "") for word in text_of(data).split("\n")]
    found = _reading(words, {})
    document = as_dict(found, ())
    as_text(document)
    json.dumps(document)


BACKENDS = PluginManager.load({}).backend_named


def _reading(words, environ):
    sources = config.Sources(words, {"HOME": str(EMPTY), **environ}, EMPTY)
    return config.read(sources, require_script=False, backend_named=BACKENDS)


@target((ConfigurationError,), b"s" * 32 + b"\n", b"\n\n" + b"t" * 16 + b"\r\n" + b"u" * 20, b"", b"x" * 5000)
def secret_file(data):
    path = written("job.secret", data)
    with suppress(ValueError):
        assert len(read_secret(path)) <= 4096
    seal_of(RendezvousParameters("c10d", "", "job", 1, 1, secret_file=str(path)))


# -- texts


@target((ValueError,), b"node7:29400", b"[fe80::1%eth0]:1", b"etcd://u:p@a:1,b:2/x", b"localhost:000000000080", b"::1")
def endpoint(data):
    text = text_of(data)[:1000]
    is_remote(text)
    for host, port in hosts_of(text, 1):
        assert split_host_port(joined_host_port(host, port), 1) == (host, port)


@target((), b"\x1b[31mred", "\u202eevil".encode(), b"a\r\nb\tc", b"\xff\xfe", b"\\x1b")
def words(data):
    for text in (text_of(data), data.decode("latin-1"), data.decode("utf-16-le", "replace")):
        line = in_one_line(text)
        assert "\n" not in line
        assert "\x1b" not in line
        assert printable(line) == line
        line.encode()


@target((ValueError, TypeError), b'{"name": "x", "source": "AGENT"}', DEEP, b'{"name": 1, "source": []}',
        b'{"name":"n","run_id":"r","message":"m","hostname":"h","pid":1,"node_state":"INIT"}')  # fmt: skip
def event(data):
    for kind in (Event, RdzvEvent):
        with suppress(ValueError, TypeError):
            kind.deserialize(text_of(data))
