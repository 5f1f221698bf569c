"""A man in the middle between the nodes of a job with a secret and their store changes, drops, repeats and reorders
data. Rounds form when there are no faults; they contain only these nodes, and no node waits forever."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time

import pytest

from elastic_core.errors import RendezvousError
from elastic_core.interfaces.node import Node
from elastic_core.rendezvous import RendezvousParameters, get_rendezvous_handler

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.timeout(3600)]

FAULTS = int(os.environ.get("ELASTICTEST_FAULTS", "1000"))
NODES = ("a", "b", "c", "d", "e", "f", "g", "h")
LONGEST = 90.0  # seconds for one call: its timeouts, and a slow machine


class ManInTheMiddle:
    """Listens on a local port and forwards to another port, in both directions. Randomly changes, drops, repeats and
    reorders data.

    Args:
        target: the port of the store.
        seed: makes the sequence of faults reproducible, but not the data that they affect.
        chance: probability of a fault for each piece of data.
        calm: number of pieces that pass unchanged after every tenth fault.

    Attributes:
        faults: the number of faults so far, by kind.
    """

    def __init__(self, target: int, seed: int, chance: float, calm: int = 0) -> None:
        self._target = target
        self._random = random.Random(seed)
        self._chance = chance
        self._calm, self._passes = calm, 0
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.faults = dict.fromkeys(("change", "drop", "repeat", "reorder"), 0)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def count(self) -> int:
        return sum(self.faults.values())

    def honest(self) -> None:
        """Inject no more faults."""
        self._chance = 0.0

    def close(self) -> None:
        self._listener.close()
        for end in self._ends:
            self._shut(end)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._ends += [client, server]
            for here, there in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(here, there), daemon=True).start()

    def _pass_on(self, here: socket.socket, there: socket.socket) -> None:
        held = b""
        try:
            while piece := here.recv(65536):
                sent, held = self._met(piece, held)
                there.sendall(sent)
        except OSError:
            pass
        self._shut(here)
        self._shut(there)

    def _met(self, piece: bytes, held: bytes) -> tuple[bytes, bytes]:
        """The data to send now, and the data to hold back until the next piece has passed."""
        with self._lock:
            self._passes -= 1
            if self._passes > 0 or self._random.random() >= self._chance:
                return piece + held, b""
            kind = self._random.choice(list(self.faults))
            self.faults[kind] += 1
            if self.count % 10 == 0:
                self._passes = self._calm
            if kind == "change":
                at = self._random.randrange(len(piece))
                other = piece[at] ^ self._random.randrange(1, 256)
                return piece[:at] + bytes([other]) + piece[at + 1 :] + held, b""
            if kind == "drop":
                at = self._random.randrange(len(piece))
                return piece[:at] + piece[at + self._random.randrange(1, 64) :] + held, b""
            if kind == "repeat":
                return piece + piece + held, b""
            return held, piece

    @staticmethod
    def _shut(end: socket.socket) -> None:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        end.close()


class Member:
    """A node that takes part again and again, each time as a new agent."""

    def __init__(self, name, port, secret):
        self.name, self.port, self.secret = name, port, secret
        self.rounds, self.errors, self.longest = [], {}, 0.0

    def take_part(self, patience=10.0):
        params = RendezvousParameters(
            "c10d", f"127.0.0.1:{self.port}", "job", 2, len(NODES), "127.0.0.1", Node(self.name, self.name),
            is_host=False, secret_file=self.secret, read_timeout=0.5, connect_timeout=5.0, join_timeout=patience,
            last_call_timeout=0.2, close_timeout=2.0, keep_alive_interval=0.1, keep_alive_max_attempt=10,
        )  # fmt: skip
        begun = time.monotonic()
        handler = get_rendezvous_handler(params)
        try:
            info = handler.next_rendezvous()
            self.rounds.append((info.formed.number, info.rank, tuple(info.formed.members), info.bootstrap_store_info))
            assert handler.verdict() is None or not handler.verdict().succeeded
            handler.leave("it was only a visit", 2.0)
        except RendezvousError as error:
            self.errors[type(error).__name__] = self.errors.get(type(error).__name__, 0) + 1
            assert str(error)
        finally:
            handler.shutdown()
            self.longest = max(self.longest, time.monotonic() - begun)


def test_tampered_traffic_forges_nothing_and_hangs_no_node(job, tmp_path):
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_bytes(b"0123456789abcdef")
    server = job.serve()
    middle = ManInTheMiddle(job.port, seed=7, chance=0.05, calm=500)
    members, broken = [Member(name, middle.port, str(secret)) for name in NODES], []

    def live(member):
        try:
            while middle.count < FAULTS and not broken and server.runs:
                member.take_part()
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            broken.append(error)

    threads = [threading.Thread(target=live, args=(member,)) for member in members]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{middle.faults} in {time.monotonic() - begun:.0f} s; rounds {sum(len(m.rounds) for m in members)}")
    print([(member.name, member.errors, round(member.longest, 1)) for member in members])
    assert not broken, broken
    assert sum(len(member.rounds) for member in members) > FAULTS // 100
    assert server.runs, server.err
    for member in members:
        assert member.longest < LONGEST
        for _, rank, seats, where in member.rounds:
            assert seats[rank].node == member.name
            assert {seat.node for seat in seats} <= set(NODES)
            assert {seat.address for seat in seats} | {where.master_addr} == {"127.0.0.1"}
    middle.honest()
    calm = [threading.Thread(target=member.take_part, args=(LONGEST,)) for member in members]
    before = [len(member.rounds) for member in members]
    for thread in calm:
        thread.start()
    for thread in calm:
        thread.join()
    assert any(len(member.rounds) > had for member, had in zip(members, before, strict=True))
    middle.close()
    server.signal(signal.SIGTERM)
    assert server.code() == 0
