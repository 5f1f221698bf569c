"""A client for endpoints."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any

VALUES = {"host": "127.0.0.1", "allowed_hosts": None, "token": None, "connections": 64, "rate": 200.0}
"""The options that `read_options` requires, with their defaults."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Any
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(port: int, path: str, method: str = "GET", headers: dict[str, str] | None = None, host: str = "127.0.0.1"):
    link = http.client.HTTPConnection(host, port, timeout=60)
    try:
        link.request(method, path, headers=headers or {})
        answer = link.getresponse()
        return Answer(answer.status, answer.headers, answer.read())
    finally:
        link.close()


def send(port: int, data: bytes) -> bytes:
    """Send these bytes; returns everything the server answers."""
    with socket.create_connection(("127.0.0.1", port), 60) as link:
        found = b""
        try:
            link.sendall(data)
            while piece := link.recv(65536):
                found += piece
        except ConnectionError:
            pass
        return found
