"""Hostile clients for the benchmark `health`: `hostile.py slow PORT COUNT` or `hostile.py malformed PORT`.

`slow` holds COUNT connections that send a request byte by byte, and reopens closed ones after two seconds. `malformed`
sends invalid requests over eight connections at a time, as fast as they are accepted. Both print a line when they have
started; `malformed` prints another line for every hundred requests.
"""

from __future__ import annotations

import random
import selectors
import socket
import sys
import threading
import time
from contextlib import suppress

EVERY_S = 0.5
BACK_AFTER_S = 2.0
AT_A_TIME = 8
LIMIT_S = 10.0
HEAD = b"GET /status HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


def connect(port: int) -> socket.socket:
    """Start to connect."""
    link = socket.socket()
    link.setblocking(False)
    link.connect_ex(("127.0.0.1", port))
    return link


def slow(port: int, count: int) -> None:
    """Hold slow connections until the process is killed."""
    links = selectors.DefaultSelector()
    sent: dict[socket.socket, int] = {}
    due = [time.monotonic()] * count

    def renew() -> None:
        while due and due[0] <= time.monotonic():
            due.pop(0)
            link = connect(port)
            links.register(link, selectors.EVENT_READ)
            sent[link] = 0

    renew()
    print("slow clients are connected", flush=True)
    while True:
        for key, _ in links.select(EVERY_S):
            gone = key.fileobj
            assert isinstance(gone, socket.socket)
            links.unregister(gone)
            gone.close()
            sent.pop(gone)
            due.append(time.monotonic() + BACK_AFTER_S)
        for link, upto in sent.items():
            with suppress(OSError):
                sent[link] += link.send(HEAD[upto : upto + 1] or b"x")
        renew()


def malformed(chance: random.Random) -> bytes:
    """An invalid request."""
    return chance.choice(
        (
            chance.randbytes(chance.randint(1, 2000)) + b"\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01" + chance.randbytes(300),
            b"GET /" + b"a" * 20_000,
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000,
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
        )
    )


def flood(port: int, seed: int, count: Count) -> None:
    """Send invalid requests until the process is killed."""
    chance = random.Random(seed)
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), LIMIT_S) as link:
            link.sendall(malformed(chance))
            link.shutdown(socket.SHUT_WR)
            while link.recv(65536):
                pass
        count.more()


class Count:
    """Counts the requests of all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def more(self) -> None:
        with self._lock:
            self._count += 1
            if self._count % 100 == 0:
                print("a hundred", flush=True)


def main(kind: str, port: int, number: int) -> None:
    if kind == "slow":
        slow(port, number)
    count = Count()
    for seed in range(AT_A_TIME):
        threading.Thread(target=flood, args=(port, seed, count), daemon=True).start()
    print("malformed requests are coming", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
