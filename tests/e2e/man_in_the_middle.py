"""A proxy between agents and their store that randomly changes, drops, repeats and reorders data."""

from __future__ import annotations

import random
import socket
import threading


class ManInTheMiddle:
    """Listens on a local port and forwards to another port, in both directions.

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
