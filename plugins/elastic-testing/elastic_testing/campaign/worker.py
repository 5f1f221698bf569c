"""The lightweight worker of a campaign: a standalone program with a training loop. It does not need torch, and logs its
actions.

The ranks connect to the round's store (MASTER_ADDR, MASTER_PORT) with TCPStore's protocol. Rank 0 serves the store if
the agent does not (TORCHELASTIC_USE_AGENT_STORE). A step is an all-reduce: every rank adds its bit, and all ranks see
the sum. Rank 0 saves the number of the step to a file, which it replaces atomically, and all ranks resume from the last
saved step. A worker that loses the store waits until it is stopped. If it is not stopped within `PATIENCE_S` seconds,
it fails, as a process group would.

These environment variables control the worker:

- `CAMPAIGN_HISTORY`: the file for events, with one line of JSON per event
- `CAMPAIGN_FOLDER`: the folder with the checkpoint and the files `finish`, which makes all workers finish, and `stay`
  (see the function `stay`)
- `CAMPAIGN_NODE`: the name of the node
- `CAMPAIGN_STOPS_S`: how many seconds rank 0 takes to stop; it then saves its step again
- `CAMPAIGN_TOGETHER`: the folder that contains the package `elastic_core`; if it is set, ranks that are asked to stop
  all do so after the same step

The program imports only a few modules of the standard library, because a storm starts thousands of workers.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_S = 0.1
SAVED_EVERY = 5
PATIENCE_S = 20.0
MEET_S = 15.0
EATEN = 256 * 2**20
"""Bytes that a worker allocates on SIGUSR1, to reach the limit of its control group."""

_VALIDATE, _SET, _GET, _ADD, _WAIT, _DELETE = 0, 1, 3, 4, 6, 8
_MAGIC = 0x3C85F7CE
_FINISH = 1 << 40

_log: list[int] = []
_reached: list[int] = []
"""The last step that rank 0 has taken. The list is empty before the first step and on all other ranks."""


def tell(what: str, **more: Any) -> None:
    """Write an event with the times of both clocks, in a single write."""
    if not _log:
        _log.append(os.open(os.environ["CAMPAIGN_HISTORY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    times = {"at": time.clock_gettime(time.CLOCK_BOOTTIME), "wall": time.time()}
    os.write(_log[0], (json.dumps({**times, "what": what, "pid": os.getpid(), **more}) + "\n").encode())


class Store:
    """A minimal TCPStore client."""

    def __init__(self, host: str, port: int, until: float) -> None:
        while True:
            try:
                self._socket = socket.create_connection((host, port), 5.0)
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(struct.pack("<BI", _VALIDATE, _MAGIC))

    def add(self, key: str, amount: int) -> int:
        return self._number(struct.pack("<B", _ADD) + _text(key.encode()) + struct.pack("<q", amount))

    def set(self, key: str, value: bytes) -> None:
        self._socket.sendall(struct.pack("<B", _SET) + _text(key.encode()) + _text(value))

    def wait(self, key: str) -> None:
        self._socket.sendall(struct.pack("<BQ", _WAIT, 1) + _text(key.encode()))
        if taken(self._socket, 1) != b"\0":
            raise ConnectionError("a wait was cancelled")

    def get(self, key: str) -> bytes:
        self.wait(key)
        self._socket.sendall(struct.pack("<B", _GET) + _text(key.encode()))
        return taken(self._socket, struct.unpack("<Q", taken(self._socket, 8))[0])

    def delete(self, key: str) -> None:
        self._number(struct.pack("<B", _DELETE) + _text(key.encode()))

    def _number(self, asked: bytes) -> int:
        self._socket.sendall(asked)
        return int(struct.unpack("<q", taken(self._socket, 8))[0])


class Server:
    """A minimal TCPStore server, with a thread per connection, for launchers whose agent does not serve the store."""

    def __init__(self, port: int) -> None:
        self._values: dict[bytes, bytes] = {}
        self._changed = threading.Condition()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("", port))
        listener.listen()
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            threading.Thread(target=self._serve, args=(listener.accept()[0],), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with peer:
            try:
                while True:
                    self._answer(peer)
            except OSError:
                return

    def _answer(self, peer: socket.socket) -> None:
        asked = taken(peer, 1)[0]
        if asked == _VALIDATE:
            taken(peer, 4)
            return
        if asked == _WAIT:
            taken(peer, 8)
        key = _read(peer)
        value = _read(peer) if asked == _SET else b""
        amount = struct.unpack("<q", taken(peer, 8))[0] if asked == _ADD else 0
        with self._changed:
            there = self._values.get(key, b"")
            if asked == _SET:
                self._values[key] = value
            elif asked == _ADD:
                self._values[key] = b"%d" % (int(there or 0) + amount)
                peer.sendall(struct.pack("<q", int(self._values[key])))
            elif asked == _DELETE:
                peer.sendall(struct.pack("<q", self._values.pop(key, None) is not None))
            elif asked == _GET:
                peer.sendall(_text(there))
            elif asked == _WAIT:
                self._changed.wait_for(lambda: key in self._values)
                peer.sendall(b"\0")
            self._changed.notify_all()


def taken(peer: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = peer.recv(count - len(found))
        if not more:
            raise ConnectionError("the store closed the connection")
        found += more
    return found


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _read(peer: socket.socket) -> bytes:
    return taken(peer, struct.unpack("<Q", taken(peer, 8))[0])


def saved(folder: str) -> int:
    """Return the step of the checkpoint, or 0 if there is no checkpoint."""
    try:
        with open(os.path.join(folder, "checkpoint")) as file:
            return int(file.read())
    except FileNotFoundError:
        return 0


def save(folder: str, step: int) -> None:
    own = os.path.join(folder, f"checkpoint.{os.getpid()}")
    with open(own, "w") as file:
        file.write(str(step))
    os.rename(own, os.path.join(folder, "checkpoint"))


def save_and_tell(folder: str, step: int) -> None:
    """Save the step, and record success or failure."""
    try:
        save(folder, step)
        tell("saved", step=step)
    except OSError as error:
        tell("not saved", step=step, error=str(error))


def stay(folder: str) -> None:
    """Delay the end of this worker if the file `stay` names another node, which is to finish first."""
    try:
        with open(os.path.join(folder, "stay")) as file:
            node, seconds = file.read().split()
    except FileNotFoundError:
        return
    if node != os.environ["CAMPAIGN_NODE"]:
        time.sleep(float(seconds))


def train(rank: int, world: int, folder: str) -> int:
    """Train until all workers are asked to finish. Returns the exit code."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        Server(port)
    # Keys have a prefix, as in torch, because with some launchers the next round uses the same store.
    ours = f"campaign/{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    store = Store(host, port, time.monotonic() + MEET_S)
    if (others := store.add(f"{ours}/rank/{rank}", 1)) != 1:
        tell("twice", rank=rank, others=others)
    if rank == 0:
        store.set(f"{ours}/group", os.urandom(6).hex().encode())
        store.set(f"{ours}/from", str(saved(folder)).encode())
    group = store.get(f"{ours}/group").decode()
    step = int(store.get(f"{ours}/from"))
    tell("met", group=group, rank=rank, world=world, step=step)
    all_ranks, first = (1 << world) - 1, step + 1
    if together := bool(os.environ.get("CAMPAIGN_TOGETHER")):
        sys.path.append(os.environ["CAMPAIGN_TOGETHER"])  # the worker runs without site-packages
        from elastic_core import should_stop
    while True:
        step += 1
        if together and should_stop(step):
            if rank == 0:
                save_and_tell(folder, step - 1)
            tell("stopped", group=group, rank=rank, step=step)
            return 0
        mine = (1 << rank) + _FINISH * os.path.exists(os.path.join(folder, "finish"))
        if store.add(f"{ours}/sum/{step}", mine) % _FINISH == all_ranks:
            store.set(f"{ours}/done/{step}", b"1")
        store.wait(f"{ours}/done/{step}")
        total = store.add(f"{ours}/sum/{step}", 0)
        if rank == 0 or step == first:
            tell("step", group=group, rank=rank, step=step, sum=total % _FINISH)
        if rank == 0:
            _reached[:] = [step]
            if step % SAVED_EVERY == 0:
                save_and_tell(folder, step)
            if step > first + 1:
                store.delete(f"{ours}/sum/{step - 2}")
                store.delete(f"{ours}/done/{step - 2}")
        if total >= _FINISH:
            # The rank that serves the store exits last, because other ranks may still read this step's sum.
            if store.add(f"{ours}/over", 1) == world:
                store.set(f"{ours}/closed", b"1")
            if rank == 0:
                store.wait(f"{ours}/closed")
            stay(folder)
            return 0
        time.sleep(STEP_S)


def main(train: Callable[[int, int, str], int] = train, says: bool = True) -> int:
    """Run a worker. `train` is called with the rank, the world size and the folder, and returns the exit code. `says`
    is false for a worker that cannot record SIGTERM in time because it waits in C++."""
    signals: list[int] = []

    def end(signum: int, _: object) -> None:
        """Behave like a worker that saves a checkpoint on SIGTERM and is then killed by the signal."""
        if not signals:
            signals.append(signum)
            tell("signal", signum=signum)
            if _reached and (seconds := float(os.environ.get("CAMPAIGN_STOPS_S", "0"))):
                time.sleep(seconds)
                save_and_tell(os.environ["CAMPAIGN_FOLDER"], _reached[0])
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)

    eaten: list[bytes] = []
    if says:
        signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGUSR1, lambda *_: eaten.append(b"x" * EATEN))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = {"node": os.environ["CAMPAIGN_NODE"], "at_port": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"}
    local, restart = int(os.environ["LOCAL_RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    tell("start", rank=rank, world=world, local=local, restart=restart, says=says, **where)
    try:
        code = train(rank, world, os.environ["CAMPAIGN_FOLDER"])
    except OSError as error:
        tell("lost", error=str(error))
        time.sleep(PATIENCE_S)
        code = 1
    tell("end", code=code)
    return code


if __name__ == "__main__":
    sys.exit(main())
